package limits

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// askStrict asks the zones that Redis decides for. After the first denial none is asked that needs
// Redis: each zone asked before gives a unit to a request that is denied, which others lack until
// it has been refunded. So the likeliest to deny is asked first: one of which nothing is left by
// what Redis last reported, as where a denial is remembered, then one that makes no call as it has
// no slot, then the one of which the least is left, and last the queues that have room, as a slot
// can't be refunded once others stand behind it. The key and limits of a zone are read right after
// its own matchers have run: those of the next one may replace what placeholders read.
//
// A request that a limit has denied before Redis is asked hears how long each of these zones would
// have it wait, and whether an operator denies all its requests.
func (e *Evaluation) askStrict(zones []*Zone, r *http.Request, counted []string) error {
	limited := !e.Denied
	for i := range e.parts {
		p := &e.parts[i]
		limited = limited || !p.shadow && (p.says == denies || p.says == reserved)
	}
	if !limited {
		return nil
	}
	for _, z := range zones {
		ok, err := false, error(nil)
		if e.Denied {
			selected, excepted, err := z.Selects(r, counted)
			ok = selected && !excepted && err == nil
		} else if ok, err = z.Applies(r, counted); err != nil {
			return err
		}
		if !ok {
			continue
		}
		e.later = e.meet(e.later, z, r)
		if last := len(e.later) - 1; e.Denied && e.later[last].says == noKey {
			e.later = e.later[:last]
		}
	}
	if !e.Denied && len(e.later) > 1 {
		for i := range e.later {
			p := &e.later[i]
			p.left = noSlot
			if left, ok := Room(p.limits, p.ask.Key, p.ask.Raw, e.Now); ok && p.says == admits {
				p.left = min(2*(left/max(1, p.ask.N)), queuesLast)
				if p.Kind.Traits().Queues && left > 0 {
					p.left += queuesLast
				}
			}
		}
		slices.SortStableFunc(e.later, func(a, b part) int { return cmp.Compare(a.left, b.left) })
	}
	return e.askLater(r)
}

// In the order of zones noSlot is between nothing left and something, and queuesLast is more than
// can be left of any limit.
const noSlot, queuesLast = 1, 1 << 61

// heard returns how long a zone that is not asked would have a request wait, as Redis last told
// this node. What responses may refund is none to wait for.
func (p *part) heard(now int64) (wait time.Duration) {
	if !p.EnforcesRaw(p.ask.Raw) {
		return 0
	}
	limits, n := p.limits, p.lowered(p.ask.N, p.limits)
	if p.Regions {
		limits, n = p.ofSide(limits, n)
	}
	for i := range limits {
		wait = max(wait, limits[i].Table.Wait(limits[i].Enforced, p.ask.Key, now, n))
	}
	return wait
}

// hears returns what tells the tables of limits how these stand once Redis has counted a refund, or
// what a request has cost: zones that are not asked go by that.
func hears(key keys.Key, g strict.Grant, of []notedUnit) func(int64, []strict.Verdict) {
	return func(call int64, all []strict.Verdict) {
		for i := range min(len(all), len(of)) {
			if g.By.IsUpToDate(g) {
				of[i].by.Import(of[i].limit, key, nil, clock.Now(), call, all[i].Reports)
			}
		}
	}
}

// recall has Redis' last denial of a key decide on a request, where ok is set: if it holds. The
// counters of this node still decide for a key without a slot of its own, and Redis is asked where
// it has yet to learn what was decided without it.
func (e *Evaluation) recall(p *part) (says verdict, ok bool) {
	if len(p.limits) == 0 {
		return admits, false
	}
	var buffer [2]strict.Verdict
	all, ok := p.memory.Recall(p.rulesOf(p.limits), p.IDOf(p.ask.Raw), p.ask.N, e.Now, buffer[:0])
	if !ok {
		return admits, false
	}
	if _, ok = Room(p.limits, p.ask.Key, p.ask.Raw, e.Now); !ok {
		return admits, false
	}
	for i := range p.limits {
		if _, owes := p.limits[i].Table.HasDebt(p.ask.Key); owes {
			return admits, false
		}
	}
	return e.decided(p, all, strict.Grant{By: p.Redis.Strict, Asked: e.Now}), true
}

// decided notes what Redis says to a request by e.Now.
func (e *Evaluation) decided(p *part, all []strict.Verdict, g strict.Grant) verdict {
	p.grant, p.ask.Now = g, e.Now
	for i := range all {
		e.receipts = append(e.receipts, table.Taken{Decision: all[i].Decision, N: p.ask.N, Top: all[i].Top})
	}
	return e.judge(p, all)
}

// askRedis has Redis decide, if it has to be asked. done is set where it decides, or the key is
// banned, and lost where Redis was asked and has not answered.
func (e *Evaluation) askRedis(p *part, r *http.Request) (says verdict, done, lost bool) {
	if _, ok := Room(p.limits, p.ask.Key, p.ask.Raw, e.Now); !ok {
		return admits, false, false
	}
	if p.asksCells() {
		return e.askCells(p, r)
	}
	var buffer [2]strict.Verdict
	answers, grant, lost := p.decideInRedis(r, p.limits, &p.ask, buffer[:0])
	// The call took its time. A later Take at the arrival's would pass for a step of the clock.
	e.Now = clock.Now()
	if grant.By == nil {
		p.wait = p.restOf(p.ask.Raw, p.shadow, e.Now)
		return banned, p.wait > 0, lost
	}
	return e.decided(p, answers, grant), true, false
}

// decideInRedis lets Redis decide for a key. Where it could not, nobody has granted, and this
// node's own counters must; lost reports whether the zone's on_redis_loss applies then.
func (z *Zone) decideInRedis(r *http.Request, limits []Limit, a *table.Ask, dst []strict.Verdict) (all []strict.Verdict, g strict.Grant, lost bool) {
	if z.Forked != nil {
		return z.lookInRedis(r.Context(), limits, a)
	}
	by := z.Redis
	for i := range limits {
		// Redis first learns what was decided for the key while it was unavailable.
		if err := limits[i].Source.ChargeNow(r.Context(), a.Key); err != nil {
			z.Notices.Strict(r, z.Name, by, err)
			return nil, g, true
		}
	}
	var err error
	for rules := z.rulesOf(limits); ; {
		all, g, err = by.Strict.Take(r.Context(), z.Name, rules, keys.IDOf(a.Raw), a.N, dst)
		if !errors.Is(err, strict.ErrClosed) {
			break
		}
		// A request that is on its way when its own configuration ends goes by the Redis of the
		// current one, whose counts are the ones that go on.
		var next *Zone
		if z.Successor != nil {
			next = z.Successor(z.Name)
		}
		if next == nil || next.Redis == by {
			return nil, g, true
		}
		if !next.IsStrict() {
			return nil, g, false // this node's counters are what is enforced there
		}
		by = next.Redis
	}
	if z.mergeBan(err) {
		return nil, g, true
	}
	z.Notices.Strict(r, z.Name, by, err)
	if err != nil {
		return nil, g, true
	}
	for i := range all {
		if by.Strict.IsUpToDate(g) {
			limits[i].Table.Import(limits[i].Enforced, a.Key, a.Raw, clock.Now(), g.Seq, all[i].Reports)
		}
	}
	z.noteReserved(limits, a.Key, a.N, all, g)
	return all, g, false
}

// lookInRedis asks what Redis would decide, and notes how limits stand. What this node has decided
// alone, and not yet charged, counts as well: a request would charge it first.
func (z *Zone) lookInRedis(ctx context.Context, limits []Limit, a *table.Ask) (all []strict.Verdict, g strict.Grant, lost bool) {
	g = strict.Grant{By: z.Redis.Strict, Asked: clock.Now()}
	z.Looked = nil
	stand, all, _, err := z.Redis.Strict.Look(ctx, z.Name, z.rulesOf(limits), z.Forked.ID, a.N)
	if err != nil {
		if !z.mergeBan(err) {
			z.Lost = err
		}
		return nil, strict.Grant{}, true
	}
	for i := range all {
		v, l := &all[i], &limits[i]
		l.Table.Import(l.Enforced, a.Key, a.Raw, clock.Now(), math.MaxInt64, stand[i].Reports)
		_, owes := l.Table.HasDebt(a.Key)
		s := l.Stand(l.Enforced, a.Raw, clock.Now())
		if left := stand[i].Decision.Remaining; !owes && (left > 0 || s.Used < s.Size) {
			s.Used = s.Size - left // by Redis' clock
		}
		if z.Looked = append(z.Looked, s); owes {
			one, t := *a, table.Taken{}
			one.Now = clock.Now()
			l.Decide(&one, z.Kind.Traits().Told, &t)
			v.Decision = t.Decision
		}
	}
	z.noteReserved(limits, a.Key, a.N, all, g)
	return all, g, false
}

// mergeBan merges the ban that Redis knows of, if that is what it has answered.
func (z *Zone) mergeBan(err error) bool {
	var banned *strict.Banned
	if err == nil || z.Banning == nil || !errors.As(err, &banned) {
		return false
	}
	z.Banning.Set.Ack(clock.Now(), banned.Message, banned.Answer)
	return true
}

// endInRedis refunds what Redis granted. What it denied is charged by then, where denied requests
// count. A slot in a queue stays taken: whether anybody stands behind it is not known here.
func (p *part) endInRedis(took []table.Taken, results []answer.Result, now int64, counts bool) (wait time.Duration) {
	switch {
	case p.Settles():
		if p.grant.Admitted() {
			for _, u := range p.reservedUnits(p.limits, took, p.grant, p.ask.Key) {
				u.RollBack()
			}
		}
		return 0
	case p.says >= denies && !counts:
		return 0
	case p.says < denies && !counts && !p.Kind.Traits().Queues:
		of := make([]notedUnit, len(p.limits))
		for i := range p.limits {
			of[i] = notedUnit{by: p.limits[i].Table, limit: p.limits[i].Enforced}
		}
		p.grant.By.Refund(p.grant, hears(p.ask.Key, p.grant, of))
		return 0
	}
	since := time.Duration(now - p.ask.Now)
	for i := range took {
		if t := &took[i]; t.Allowed && t.Remaining < t.N {
			results[i].RetryAfter = max(1, t.Next-since)
			wait = max(wait, results[i].RetryAfter)
		}
	}
	return wait
}
