package table

import (
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

// What other nodes have reserved, as the answers of a store tell. They may refund it, so that what
// they have spent falls again. What they have settled never does, and that is all that has to
// outlast a loss of the store.

// setOthers notes what other nodes have reserved of a key in an epoch.
func (r *Reservations) setOthers(key keys.Key, epoch, n int64) {
	if n <= 0 && r.isEmpty(key) {
		return
	}
	r.change(key, func(e *reservedKey) {
		e.others = slices.DeleteFunc(e.others, func(o reservedByOthers) bool { return o.epoch == epoch })
		if n > 0 {
			e.others = append(e.others, reservedByOthers{epoch, n})
		}
	})
}

// justNow is when something was lost, until IsRecovering knows the time.
const justNow = -1

// ResentReserved is how long after a loss all nodes have sent once more what they hold, and two
// intervals of the sync: they leave 10 seconds between two times, spread what they send over 10
// more, and a loss is noticed by the next heartbeat.
const ResentReserved = 25 * time.Second

// Lose notes that the store has lost something, or is another one.
func (r *Reservations) Lose() { r.lost.Store(justNow) }

// IsRecovering reports whether others may not have sent again what the store has lost, where each
// node syncs once in interval at least. now is the callers' clock.
func (r *Reservations) IsRecovering(now int64, interval time.Duration) bool {
	if r.lost.CompareAndSwap(justNow, max(1, now)) {
		return true
	}
	lost := r.lost.Load()
	return lost != 0 && now-lost < int64(ResentReserved+2*interval)
}

// mayBeIncomplete reports whether the store may still lack what others have spent, so that what is
// known of them is kept: they may not have followed the last step of the clock, or not have sent
// again what was lost.
func (t *Table[S]) mayBeIncomplete(b *SyncConfig, now int64) bool {
	return t.goesByStore(b) && t.reservations.IsRecovering(now, b.Interval) || t.inStepGrace(b, now)
}

// goesByStore reports whether the store is believed after that time even where it has less of
// others than is known here. They may have refunded it. Or the store decides, and it was emptied:
// what a node had spent that has ended since is nowhere then.
func (t *Table[S]) goesByStore(b *SyncConfig) bool {
	return b.Params.Reserves || b.StoreDecides && t.bucket == nil
}
