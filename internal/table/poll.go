package table

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

// pollAgain has a key that was just answered be asked about before the next cycle, where requests
// reserve units and other nodes may spend those that are left. passed is since the answer before.
func (t *Table[S]) pollAgain(b *SyncConfig, e entry[S], passed int64, news bool) {
	if !b.PollsAgain() {
		return
	}
	left := t.machine.Take(&e.state, b.Limit, e.At, 0, 0).Remaining
	if after := nextPoll(t.machine.Ledger(&e.state), b.Limit, b.Interval, left, passed, news); after > 0 {
		t.pollAfter(b, e.key, e.At, earlyPause, after-earlyPause)
	}
}

// pollAfter asks about a key after two waits, unless it is answered before. After the first it asks
// if something is unsent: within earlyPause no request makes a key urgent.
func (t *Table[S]) pollAfter(b *SyncConfig, key keys.Key, answered int64, wait, rest time.Duration) {
	b.After(wait, func() {
		if t.refreshAfter(b, key, answered, rest) {
			b.Waker.Wake()
		}
	})
}

// refreshAfter makes a key urgent, or waits for the rest. It reports whether the replicator should
// be woken.
func (t *Table[S]) refreshAfter(b *SyncConfig, key keys.Key, answered int64, rest time.Duration) (wake bool) {
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	if !ok || t.config.Load() != b {
		return false
	}
	e := t.withSyncState(st, i)
	if e.At != answered || e.flags&(urgent|inFlight|failed) != 0 {
		return false
	}
	if rest > 0 && t.machine.Ledger(&e.state).Unsent(b.Limit.History) == 0 {
		t.pollAfter(b, key, answered, rest, 0)
		return false
	}
	return t.markUrgent(st, i, e)
}
