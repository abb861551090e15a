package table

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// The store's clock and its steps. Each Take goes by the first part: an offset brings the caller's
// instant to the table's clock, and current returns a key that goes by that one.
//
// When the clock steps, every instant and epoch that is stored has to move with it, under the lock
// of its stripe. So a step is applied to a key when a request comes for it, and to all of them soon
// after. A parity tells which have had theirs: the offset has that of the number of steps there
// were, and stepParity of an entry that of those that were applied to it. A step begins when the
// last has been applied to all.

// parity is that of the number of steps, as flags have it.
func parity(o Offset) uint8 { return o.Parity() * stepParity }

// clock returns the offset as it is now.
func (t *Table[S]) clock() Offset { return Offset(t.offset.Load()) }

// Offset is what the table adds to its callers' clock.
func (t *Table[S]) Offset() time.Duration { return time.Duration(t.clock().NS()) }

// drift is what a clock may go wrong by between two readings of the store's time. More is a step.
const drift = 100 * time.Millisecond

// stepGrace is how long after a step of the store's clock all nodes have noticed. An interval later
// they have sent what they hold once more.
const stepGrace = 3 * time.Second

// SetClock brings the table to the store's time, which is ahead of the caller's clock by so much,
// give or take uncertainty. A step moves what is stored along with it, so that it neither frees nor
// locks out anyone. It is not brought in little by little: nodes that disagree on the boundaries of
// windows count into different ones meanwhile. now is the caller's clock.
func (t *Table[S]) SetClock(now int64, ahead, uncertainty time.Duration) {
	off, first := (ahead - t.Offset()).Abs(), !t.clocked.Swap(true)
	switch b := t.config.Load(); {
	case off <= uncertainty+time.Millisecond:
	case first && t.Keys() == 0:
		t.setOffset(now, ahead, false)
	default:
		t.setOffset(now, ahead, off > drift || b != nil && off >= b.Params.Window/2)
	}
}

// setOffset changes what is added to callers' clocks, to a nanosecond or two. Where shift is set
// the clock has taken a step, and all that is stored moves with it. now is the caller's clock.
func (t *Table[S]) setOffset(now int64, ahead time.Duration, shift bool) {
	t.walking.Lock()
	defer t.walking.Unlock()
	old, next := t.clock(), int64(ahead)&^1
	b := t.config.Load()
	if !shift || b == nil || next == old.NS() {
		t.offset.Store(next | int64(old)&1)
		return
	}
	// From here on each key says which steps it has had.
	t.each(func(st *stripe[S], i uint32, _ entry[S]) { t.withSyncState(st, i) })
	t.stepped.Store(now)
	t.step.Store(next - old.NS())
	moved := Offset(t.moved.Load())
	t.moved.Store((moved.NS() + next - old.NS()) | int64(old)&1 ^ 1)
	t.offset.Store(next | int64(old)&1 ^ 1)
	t.each(func(st *stripe[S], i uint32, _ entry[S]) { t.current(st, b.Limit, i, now) })
}

// isEarly reports whether other nodes may not have followed the last step yet.
func (t *Table[S]) isEarly(b *SyncConfig, now int64) bool {
	stepped := t.stepped.Load()
	return stepped != 0 && now-stepped < int64(stepGrace+2*b.Rate)
}

// current returns a key that is synced as it is by the table's clock, and the caller's now in that.
func (t *Table[S]) current(st *stripe[S], l algorithms.Limit, i uint32, now int64) (e entry[S], at int64, o Offset) {
	o = t.clock()
	at = o.In(now)
	return t.applyStep(st, l, i, at, o), at, o
}

// applyStep is withSyncState for what goes by the clock: it applies the last step to a state that
// has not had it. now is in the table's time, o ahead of the caller's.
func (t *Table[S]) applyStep(st *stripe[S], l algorithms.Limit, i uint32, now int64, o Offset) entry[S] {
	e := t.withSyncState(st, i)
	if e.flags&stepParity == parity(o) {
		return e
	}
	e.flags ^= stepParity
	step, length := t.step.Load(), t.config.Load().Epoch
	t.machine.Shift(&e.state, l, now, time.Duration(step))
	t.unsettled.Shift(e.key, int64(time.Duration(step).Round(length)/length), t.machine.Ledger(&e.state).Epoch)
	if e.At != 0 {
		e.At += step
	}
	switch ledger := t.machine.Ledger(&e.state); {
	case ledger.Resend&algorithms.Moved != 0:
		e.said = 0
		st.markDirty(i, e)
	case t.bucket != nil && step > 0 && !t.config.Load().AtOnce: // there it has drained for that
		ledger.Resend |= algorithms.Forgotten
		st.markDirty(i, e)
	}
	return e
}

// isCurrent reports whether a state goes by the clock after its last step.
func (e entry[S]) isCurrent(o Offset) bool {
	return e.syncState == nil || e.flags&stepParity == parity(o)
}
