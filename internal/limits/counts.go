package limits

import (
	"net/http"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
)

// A zone's slots and limits are one gate, with two ways to decide: by this node, or by Redis.

// askCounts asks for a slot first: where none is free the limits are not asked, so that the request
// counts nowhere.
func askCounts(e *Evaluation, p *part, r *http.Request) verdict {
	slots, slowed := p.Slots.For(p.by), p.slows(p.shadow, p.by)
	if len(p.limits) == 0 && slots == nil {
		if slowed {
			return slows
		}
		p.Decisions.Count(answer.Skipped)
		return skips
	}
	if names := p.KeyNames; p.LogKeys && names.Wants(p.ask.Key, e.Now) {
		names.Leave(p.ask.Key, p.Template.Text(p.ask.Raw))
	}
	if says := e.recall(p); says >= denies {
		return says
	}
	if slots != nil {
		if says := e.takeSlot(p, slots, slowed, r); says != admits {
			return says
		}
	}
	lost := false
	if p.IsStrict() && len(p.limits) > 0 {
		var says verdict
		var done bool
		if says, done, lost = e.askRedis(p, r); done {
			return says
		}
	}
	if p.OnRedisLoss != config.LossLocal && (lost || p.IsUnavailable(p.ask.Raw)) {
		var says verdict
		if p.limits, says = p.failOver(p.limits, slowed); says != admits {
			return says
		}
	}
	p.ask.Now = e.Now
	says := admits
	if p.QueuesLast {
		says = peeked
	}
	allowed := !p.Kind.Queues()
	for i := range p.limits {
		e.receipts = slices.Grow(e.receipts, 1)[:len(e.receipts)+1]
		l, t := &p.limits[i], &e.receipts[len(e.receipts)-1]
		if t.reserved = false; says == peeked {
			l.Peek(&p.ask, &t.Taken)
		} else {
			l.Decide(&p.ask, p.Want|p.Reserving, &t.Taken)
		}
		allowed = allowed && t.Allowed
	}
	if allowed {
		return says
	}
	return max(says, e.judge(p))
}

// failOver applies a zone's on_redis_loss. This node decides where it admits, by the limits that
// are returned. slowed is set where responses of the key are slowed.
func (z *Zone) failOver(limits []Limit, slowed bool) ([]Limit, verdict) {
	switch {
	case z.OnRedisLoss == config.LossDeny:
		return nil, unavailable
	case z.OnRedisLoss == config.LossAllow && slowed:
		return nil, slows
	case z.OnRedisLoss == config.LossAllow:
		return nil, skips
	case z.isOwn(limits):
		DivideLimits(limits, z.Redis.Replicator.Nodes())
		return limits, admits
	}
	return z.Shares.Of(z.AllLimits, z.Redis.Replicator.Nodes()), admits
}

// reservedWait is what a client is told that is denied as others have reserved what is left. Their
// responses may begin at any time.
const reservedWait = time.Second

// judge says whether the limits of a zone deny, and notes how long they make the client wait, or an
// admitted request in its queue. In shadow mode nobody waits.
func (e *Evaluation) judge(p *part) (says verdict) {
	for i := range p.limits {
		l, t := &p.limits[i], &e.receipts[p.first+i]
		if t.Allowed {
			if t.N > 0 && p.Kind.Queues() && !p.shadow {
				e.Delay = max(e.Delay, t.Delay)
			}
			continue
		}
		if p.CountResponses != nil && p.grant.By() == nil {
			t.reserved = l.Settler.AdmitsSettled(l.Enforced, p.ask.Key, e.Now, p.ask.N)
		}
		switch {
		case !t.reserved:
			says = denies
		case says == admits:
			says = reserved
		}
		if t.reserved {
			t.Retry = reservedWait
		}
		p.wait = max(p.wait, t.Retry)
	}
	return says
}

// endCounts refunds what slots and limits gave to a request that is denied. A zone that counts
// denied requests keeps what its limits gave, and those of them that denied take as many units. One
// of a key that is banned counts nowhere.
func endCounts(e *Evaluation, p *part, why ending) {
	if why == endsGone {
		e.leave(p)
		return
	}
	results := e.Results()
	if p.slot > 0 && e.slots[p.slot-1].GiveBack() {
		results[p.first-1].Remaining++
	}
	counts := p.CountDenied && why != endsBanned
	took := e.receipts[p.first : p.first+len(p.limits)]
	wait := time.Duration(0)
	for i := range took {
		l, t, d := &p.limits[i], &took[i], &results[p.first+i]
		switch {
		case p.grant.By() != nil:
		case t.Allowed && t.N == 0:
			wait = max(wait, l.finishPeek(&p.ask, t, e.Now, counts, d))
		case t.Allowed && counts:
			wait = max(wait, l.keep(&p.ask, e.Now, d))
		case t.Allowed:
			l.giveBack(&p.ask, t, e.Now, d)
		case counts:
			wait = max(wait, l.penalize(&p.ask, t, e.Now, d))
		}
	}
	if p.grant.By() != nil {
		wait = p.endInRedis(took, results[p.first:], e.Now, counts)
	}
	if !p.shadow {
		e.Denial.Wait = max(e.Denial.Wait, wait)
	}
}

// leave frees the slots in queues of a client that went away. What it has reserved stays spent.
func (e *Evaluation) leave(p *part) {
	if p.says >= denies { // it has got its slots back
		return
	}
	took, now := e.receipts[p.first:p.first+len(p.limits)], clock.Now()
	for i := range took {
		if l := &p.limits[i]; p.grant.By() == nil && took[i].Delay > 0 {
			l.Table.Leave(l.Enforced, p.ask.Key, took[i].Taken, now, took[i].N)
		}
	}
	for _, u := range p.reservedUnits(p.limits, took, p.grant, p.ask.Key) {
		u.Settle(Response{})
	}
}

// holdCounts holds the units of a zone that its response settles, and its slot until the handler
// has returned.
func holdCounts(e *Evaluation, p *part, h *Held) {
	if !p.says.isDecision() || p.says >= denies {
		return
	}
	if units := p.reservedUnits(p.limits, e.receipts[p.first:], p.grant, p.ask.Key); len(units) > 0 {
		h.OnBegin(func(r Response) {
			for i := range units {
				units[i].Settle(r)
			}
		})
	}
	if p.slot > 0 {
		if s := &e.slots[p.slot-1]; s.Allowed && !s.Again {
			s.HoldBy(h)
		}
	}
}
