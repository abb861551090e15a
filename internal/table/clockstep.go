package table

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// A Clock is the store's, as a stripe goes by it: how far it is ahead of the callers' clock, which
// never steps, and how far all its steps went together. When it steps, every instant and epoch that
// is stored moves with it: of all keys of a stripe under one hold of its lock.
type Clock struct{ ahead, steps int64 }

// In brings an instant of the callers' clock to the store's.
func (c Clock) In(now int64) int64 { return now + c.ahead }

// Offset is what the table adds to its callers' clock.
func (t *Table[S]) Offset() time.Duration { return time.Duration(t.offset.Load()) }

// in is Clock.In where no stripe's lock is held.
func (t *Table[S]) in(now int64) int64 { return now + t.offset.Load() }

// drift is what a clock may go wrong by between two readings of the store's time. More is a step.
const drift = 100 * time.Millisecond

// stepGrace is how long after a step of the store's clock all nodes have noticed. Two intervals
// later they have sent what they hold once more.
const stepGrace = 3 * time.Second

// SetClock brings the table to the store's time, which is ahead of the caller's clock by so much,
// give or take uncertainty. A step moves what is stored along with it, so that it neither frees nor
// locks out anyone. It is not brought in little by little: nodes that disagree on the boundaries of
// windows count into different ones meanwhile. now is the caller's clock.
func (t *Table[S]) SetClock(now int64, ahead, uncertainty time.Duration) {
	first, off := !t.clocked.Swap(true), func() time.Duration { return (ahead - t.Offset()).Abs() }
	if off() <= uncertainty+time.Millisecond {
		return
	}
	t.walking.Lock()
	defer t.walking.Unlock()
	b, away := t.config.Load(), off() // another reading may have moved it meanwhile
	t.setOffset(now, ahead, (!first || t.Keys() > 0) && (away > drift || b != nil && away >= b.Params.Window/2))
}

// setOffset changes what is added to callers' clocks. Where shift is set the clock has taken a
// step, and all that is stored moves with it. now is the caller's clock. walking is held.
func (t *Table[S]) setOffset(now int64, ahead time.Duration, shift bool) {
	b, step := t.config.Load(), int64(ahead)-t.offset.Load()
	if !shift || b == nil {
		step = 0
	}
	if step != 0 {
		t.stepped.Store(now)
	}
	t.offset.Store(int64(ahead))
	for s := range t.stripes {
		st := &t.stripes[s]
		st.mu.Lock()
		st.clock = Clock{int64(ahead), st.clock.steps + step}
		for i := uint32(0); step != 0 && i < st.size; i++ {
			if st.slot(i).used() {
				t.shift(st, i, b, st.clock.In(now), step)
			}
		}
		st.mu.Unlock()
	}
}

// shift moves what is stored of a key by a step of the clock, which says now. What the store has of
// it is of other epochs. A bucket has drained there for a step ahead, unless the store decides.
func (t *Table[S]) shift(st *stripe[S], i uint32, b *SyncConfig, now, step int64) {
	e, by := t.withSyncState(st, i), time.Duration(step)
	l := t.machine.Ledger(&e.state)
	t.machine.Shift(&e.state, b.Limit, now, by)
	t.reservations.Shift(e.key, b.Epochs.Passed(now, by), l.Epoch)
	if e.At != 0 {
		e.At += step
	}
	switch {
	case t.bucket == nil:
		l.Resend |= algorithms.Unconfirmed
		e.sentSeq = 0
	case step > 0 && !b.StoreDecides:
		l.Resend |= algorithms.Forgotten
		l.RemoteOnlyRises()
	}
	st.markDirty(i, e)
}

// since is the instant of a Take by the clock as it is now: if it has stepped, that has moved as
// everything that is stored has.
func (st *stripe[S]) since(taken Taken) int64 { return taken.At + st.clock.steps - taken.clock.steps }

// inStepGrace reports whether other nodes may not have followed the last step yet.
func (t *Table[S]) inStepGrace(b *SyncConfig, now int64) bool {
	stepped := t.stepped.Load()
	return stepped != 0 && now-stepped < int64(stepGrace+2*b.Interval)
}

// current returns a key with what is known of its syncs, and the caller's now by the table's clock.
func (t *Table[S]) current(st *stripe[S], i uint32, now int64) (e entry[S], at int64) {
	return t.withSyncState(st, i), st.clock.In(now)
}
