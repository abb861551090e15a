package table

import (
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// What other nodes have reserved, as the answers of a store tell. They may refund it, so that what
// they have spent falls again. What they have settled never does, and that is all that has to
// outlast a loss of the store.

// Merge notes what an answer says others have reserved in its epoch, and returns what to take for
// spent by them there. kept is what the ledger takes for it: more than the store has where that has
// lost something. Of that it is what they had settled and what they have reserved now; the rest was
// refunded. In doubt, while others may not have sent again what was lost, it is all that is kept.
// Where the store has less of this node than it had confirmed, acked, the answer is not believed.
func (r *Unsettled) Merge(a *Answer, acked, kept int64, doubt bool) (remote int64) {
	mine := a.Held
	if a.Push {
		mine = a.Total
	}
	spent := a.Sum - mine
	reserved := min(spent, max(0, spent-(a.SumSettled-a.Settled)))
	if mine < acked || doubt && kept > spent {
		return kept
	}
	if kept > spent {
		_, had := r.In(a.Key, a.Epoch)
		kept = max(spent, kept-had+reserved)
	}
	r.setOthers(a.Key, a.Epoch, reserved)
	return kept
}

// setOthers notes what other nodes have reserved of a key in an epoch.
func (r *Unsettled) setOthers(key keys.Key, epoch, n int64) {
	if n <= 0 && r.isEmpty(key) {
		return
	}
	r.change(key, func(e *unsettledKey) {
		e.others = slices.DeleteFunc(e.others, func(o unsettledElse) bool { return o.epoch == epoch })
		if n > 0 {
			e.others = append(e.others, unsettledElse{epoch, n})
		}
	})
}

// setStored notes what all nodes have reserved of a key by the reports of a store that decides.
// What a sync has told before of the others is in it.
func (r *Unsettled) setStored(key keys.Key, all []algorithms.Report) {
	if r.isEmpty(key) && !slices.ContainsFunc(all, func(a algorithms.Report) bool { return a.Reserved > 0 }) {
		return
	}
	r.change(key, func(e *unsettledKey) {
		e.others, e.stored = nil, e.stored[:0]
		for _, a := range all {
			if a.Reserved > 0 {
				e.stored = append(e.stored, unsettledElse{a.Epoch, a.Reserved})
			}
		}
	})
}

// storedIn is what they have reserved in an epoch.
func (r *Unsettled) storedIn(key keys.Key, epoch int64) (n int64) {
	r.look(key, func(e *unsettledKey) {
		for _, o := range e.stored {
			if o.epoch == epoch {
				n = o.n
			}
		}
	})
	return n
}

// justNow is when something was lost, until InDoubt knows the time.
const justNow = -1

// ResentUnsettled is how long after a loss all nodes have sent once more what they hold, and two
// intervals of the sync: they leave 10 seconds between two times, spread what they send over 10
// more, and a loss is noticed by the next heartbeat.
const ResentUnsettled = 25 * time.Second

// Lose notes that the store has lost something, or is another one.
func (r *Unsettled) Lose() { r.lost.Store(justNow) }

// InDoubt reports whether others may not have sent again what the store has lost, where each node
// syncs once in interval at least. now is the callers' clock.
func (r *Unsettled) InDoubt(now int64, interval time.Duration) bool {
	if r.lost.CompareAndSwap(justNow, max(1, now)) {
		return true
	}
	lost := r.lost.Load()
	return lost != 0 && now-lost < int64(ResentUnsettled+2*interval)
}
