package table

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// A response may forgive what one key has spent, as a right login does. That is a reset of which
// the control record tells nothing: what is said of the key carries its stamp, the store empties
// the cell, and another node hears of it by the answer to what it says next. Resets of the control
// record that a cell shows before the record is read go the same way.

// keyReset is the latest such reset of a key. It is forgotten when a window is over since the store
// was last known to have its stamp: what was spent before counts no more then, and the store keeps
// the stamp longer.
type keyReset struct {
	reset.Reset
	// when is when it was applied, by the callers' clock.
	when int64
}

// ForgiveKey forgives what a key has spent on all nodes, at now by the caller's clock. It does
// nothing if nothing is spent, where the store has answered for the key after since: before that,
// others may have spent something. A key without a slot shares its counter, which stays as it is.
func (t *Table[S]) ForgiveKey(key keys.Key, since, now int64) {
	b := t.config.Load()
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	if !ok || b == nil {
		return
	}
	e, at := st.at(i), st.clock.In(now)
	own, remote := t.machine.Spent(&e.state, b.Limit, at)
	if own+remote == 0 && (!b.IsSynced() || e.syncState != nil && e.At >= st.clock.In(since)) {
		return
	}
	stamp := max(at/int64(time.Microsecond), t.resetOf(st, e.id, at).Stamp+1)
	t.applyReset(st, b, i, now, resetAt(stamp, at, b))
	if !b.IsSynced() {
		return
	}
	t.machine.Ledger(&e.state).Resend |= algorithms.Settled // so that a process that ends sends it
	if b.Early && t.markUrgent(st, i, st.at(i)) {
		b.Waker.Wake()
	}
}

// applyReset applies the reset of one key, by a response here, or of which the store has told.
// Where nothing counts that was spent before it, only its stamp is taken. The stripe's lock is
// held.
func (t *Table[S]) applyReset(st *stripe[S], b *SyncConfig, i uint32, now int64, r reset.Reset) {
	if st.forgiven == nil {
		st.forgiven = make(map[keys.ID]keyReset)
	}
	one := keyReset{r, st.forgiven[st.slot(i).id].when}
	if resetAt(r.Stamp, r.At, b).Until > st.clock.In(now) {
		one.when = now
		t.resetKey(st, b, i, now, r)
	}
	st.forgiven[st.slot(i).id] = one
	if b.IsSynced() {
		t.changed(st, b, st.at(i), i)
	}
}

// noteStored notes that the store has had a key under a stamp at an instant of its clock.
func (st *stripe[S]) noteStored(b *SyncConfig, server int64, id keys.ID, stamp int64) {
	if f, ok := st.forgiven[id]; ok && f.Stamp == stamp {
		f.Until = resetAt(stamp, server, b).Until
		st.forgiven[id] = f
	}
}

// resetAt is the reset with a stamp, as far as that tells: the stamp is the instant of the reset in
// microseconds, or a little later.
func resetAt(stamp, server int64, b *SyncConfig) reset.Reset {
	at := stamp * int64(time.Microsecond)
	r := reset.Reset{Stamp: stamp, At: at, Until: max(at, server) + int64(b.Params.Counts())}
	if c := b.Epochs.Calendar; c != nil {
		r.Until = c.At(max(at, server)).End
	}
	return r
}

// eachKeyReset calls f with the map of each stripe, under its lock.
func (t *Table[S]) eachKeyReset(f func(of *map[keys.ID]keyReset)) {
	for s := range t.stripes {
		st := &t.stripes[s]
		st.mu.Lock()
		f(&st.forgiven)
		st.mu.Unlock()
	}
}
