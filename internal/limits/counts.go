package limits

import (
	"net/http"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// A zone's slots and limits are one gate, with two ways to decide: by this node, or by Redis.

// askCounts asks for a slot first: where none is free the limits are not asked, so that the request
// counts nowhere.
func askCounts(e *Evaluation, p *check, r *http.Request) decision {
	slots, slowed := p.Slots.For(p.override), p.slows(p.shadow, p.override)
	if len(p.limits) == 0 && slots == nil {
		if slowed {
			return slows
		}
		p.Decisions.Count(answer.Skipped)
		return skips
	}
	if names := p.KeyNames; p.LogKeys && names.Wants(p.ask.Key, e.Now) {
		names.Put(p.ask.Key, p.Template.Text(p.ask.Raw))
	}
	if p.cost != nil && p.isTooLarge(&p.ask, p.limits, e.Now, &e.taken) {
		return tooLarge
	}
	if p.Regions {
		p.limits, p.ask.N = p.ofSide(p.limits, p.ask.N)
	}
	if e.recallDenial(p) {
		return e.judge(p)
	}
	if slots != nil {
		if decided := e.takeSlot(p, slots, slowed, r); decided != admits {
			return decided
		}
	}
	lost, done, allowed, decided := false, false, true, admits
	if p.IsStrict() && len(p.limits) > 0 {
		if decided, done, lost = e.askRedis(p, r); done {
			return decided
		}
	}
	if p.OnRedisLoss != config.LossLocal && p.ask.N > 0 && (lost || p.IsUnavailable(p.ask.Raw)) {
		if p.limits, decided = p.failOver(p.limits, slowed); decided != admits {
			return decided
		}
		p.ask.N = p.capped(p.ask.N, p.limits)
	}
	decided, p.ask.Now = admits, e.Now
	if p.QueuesLast {
		decided = peeked
	}
	if p.Dry != nil {
		p.Dry.noteUsage(p.limits, e.Now)
	}
	for i := range p.limits {
		l, t := &p.limits[i], oneMore(&e.taken)
		if decided == peeked {
			l.Peek(&p.ask, t)
		} else {
			l.Decide(&p.ask, p.Want|p.Reserving, t)
		}
		allowed = allowed && t.Allowed
	}
	if allowed && !p.Kind.Traits().Queues {
		return decided
	}
	if judged := e.judge(p); judged.isDenial() {
		return judged
	}
	return decided
}

// oneMore appends an element to a list, to be filled in whole.
func oneMore[T any](list *[]T) *T {
	*list = slices.Grow(*list, 1)[:len(*list)+1]
	return &(*list)[len(*list)-1]
}

// failOver applies a zone's on_redis_loss. This node decides where it admits, by the limits that
// are returned. slowed is set where responses of the key are slowed.
func (z *Zone) failOver(limits []Limit, slowed bool) ([]Limit, decision) {
	switch {
	case z.OnRedisLoss == config.LossDeny:
		return nil, unavailable
	case z.OnRedisLoss == config.LossAllow && slowed:
		return nil, slows
	case z.OnRedisLoss == config.LossAllow:
		return nil, skips
	}
	return z.ofNode(limits), admits
}

// judge says whether the limits of a zone deny, and notes how long they make the client wait, or an
// admitted request in its queue. In shadow mode nobody waits.
func (e *Evaluation) judge(p *check) (decided decision) {
	for i := range p.limits {
		l, t := &p.limits[i], &e.taken[p.first+i]
		if t.Allowed {
			if t.N > 0 && p.Kind.Traits().Queues && !p.shadow {
				e.Delay = max(e.Delay, t.Delay)
			}
			continue
		}
		// It may have room as soon as others get back what they have reserved.
		if !p.Settles() || !l.Table.AdmitsReleased(l.Effective, p.ask.Key, e.Now, p.ask.N) {
			decided = denies
		} else if t.Retry = p.reservedWait(t.Retry); decided == admits {
			decided = awaitsRefund
		}
		p.wait = max(p.wait, t.Retry)
	}
	return decided
}

// rollBackCounts refunds what slots and limits gave to a request that ends here. A zone that counts
// denied requests keeps what its limits gave, and those of them that denied take as many units. One
// of a key that is banned counts nowhere. Of a client that went away in a queue only the places
// there are free again: what it has reserved stays spent.
func rollBackCounts(e *Evaluation, p *check, why ending) {
	took := e.taken[p.first : p.first+len(p.limits)]
	if why == endsGone {
		if p.decision.isDenial() {
			return // it has got its slots back
		}
		now := clock.Now()
		for i := range took {
			if l := &p.limits[i]; !p.byRedis && took[i].Delay > 0 {
				l.Table.Leave(l.Effective, p.ask.Key, took[i], now, took[i].N)
			}
		}
		for _, u := range p.reservedUnits(p.limits, took, p.ask.Key) {
			u.Settle(true, 0)
		}
		return
	}
	results := e.Results()
	if p.slot > 0 && e.slots[p.slot-1].GiveBack() {
		results[p.first-1].Remaining++
	}
	counts, wait := p.CountDenied && why != endsBanned, time.Duration(0)
	if p.byRedis && p.decision.isDenial() && !counts {
		return // nothing was spent
	}
	for i := range took {
		wait = max(wait, p.limits[i].rollBack(&p.ask, &took[i], e.Now, counts, p.byRedis, &results[p.first+i]))
	}
	if !p.shadow {
		e.Denial.Wait = max(e.Denial.Wait, wait)
	}
}

// holdCounts holds the units of a zone that its response settles, and its slot.
func holdCounts(e *Evaluation, p *check, h *Held) {
	if !p.decision.isByLimits() || p.decision.isDenial() {
		return
	}
	if units := p.reservedUnits(p.limits, e.taken[p.first:], p.ask.Key); len(units) > 0 {
		if p.responseCost != nil {
			p.holdCost(units, p.ask.N, h)
		} else {
			h.OnBegin(func(r Response) {
				counts := units[0].zone.noteResponse(r)
				for i := range units {
					units[i].Settle(counts, r.At)
				}
			})
			if p.cost != nil {
				p.countRefund(p.ask.N, h)
			}
		}
		// What all requests with two names share, anybody's login would clear.
		if p.ForgiveResponses != nil && !reqkey.IsAmbiguous(p.ask.Raw) {
			z, key, since := units[0].zone, p.ask.Key, e.Now
			h.OnBegin(func(r Response) { z.forgive(key, since, r) })
		}
	}
	if p.slot > 0 {
		if s := &e.slots[p.slot-1]; s.Allowed && !s.AlreadyHeld {
			s.HoldBy(h)
		}
	}
}
