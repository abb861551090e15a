package limits

import (
	"cmp"
	"net/http"
	"slices"
	"time"
)

// askStrict asks the zones that Redis decides for. After the first denial none is asked that needs
// Redis: each zone asked before gives a unit to a request that is denied, which others lack until
// it has been refunded. So the likeliest to deny is asked first: one of which nothing is left by
// what Redis last reported, as where a denial is remembered, then one that makes no call as it has
// no slot, then the one of which the least is left, and last the queues that have room, as a place
// can't be refunded once others stand behind it. The key and limits of a zone are read right after
// its own matchers have run: those of the next one may replace what placeholders read.
//
// A request that a limit has denied before Redis is asked hears how long each of these zones would
// have it wait, and whether an operator denies all its requests.
func (e *Evaluation) askStrict(zones []*Zone, r *http.Request, counted []string) error {
	limited := !e.Denied
	for i := range e.checks {
		p := &e.checks[i]
		limited = limited || !p.shadow && (p.decision == denies || p.decision == awaitsRefund)
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
		e.later = e.addCheck(e.later, z, r)
		if last := len(e.later) - 1; e.Denied && e.later[last].decision == noKey {
			e.later = e.later[:last]
		}
	}
	if !e.Denied && len(e.later) > 1 {
		for i := range e.later {
			p := &e.later[i]
			p.rank = noCounterRank
			if left, ok := Room(p.limits, p.ask.Key, p.ask.Raw, e.Now); ok && p.decision == admits {
				p.rank = rankOf(left, p.ask.N, p.Kind.Traits().Queues)
			}
		}
		slices.SortStableFunc(e.later, func(a, b check) int { return cmp.Compare(a.rank, b.rank) })
	}
	return e.askLater(r)
}

// In the order of zones noCounterRank is between nothing left and something, and from queueRank on
// are queues with room.
const noCounterRank, queueRank = 1, 1 << 61

// rankOf is the place of a zone of which so much is left for requests of n units.
func rankOf(left, n int64, queues bool) int64 {
	rank := 2 * min(left/max(1, n), queueRank/2-1)
	if queues && left > 0 {
		rank += queueRank
	}
	return rank
}

// lastWait returns how long a zone that is not asked would have a request wait, as Redis last told
// this node. What responses may refund is none to wait for.
func (p *check) lastWait(now int64) (wait time.Duration) {
	if !p.EnforcesRaw(p.ask.Raw) {
		return 0
	}
	limits, n := p.limits, p.capped(p.ask.N, p.limits)
	if p.Regions {
		limits, n = p.ofSide(limits, n)
	}
	for i := range limits {
		wait = max(wait, limits[i].Table.Wait(limits[i].Effective, p.ask.Key, now, n))
	}
	return wait
}
