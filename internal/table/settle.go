package table

import (
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// Units that are taken for a request whose response decides whether it counts. They are spent like
// all others, and noted apart until they are settled: kept, or refunded as far as they still count.

// Reserve says in the want of a Take that its units are reserved, until Settle. It goes together
// with WantReset, which tells until when they count.
const Reserve algorithms.Want = 1 << 6

// Reserved is what a Take has reserved.
type Reserved struct {
	Taken
	limit algorithms.Limit
	group *UnsettledGroup
	// until is the instant of the callers' clock at which it ends to count. moved is how far
	// the table's clock had stepped in all when it was taken: a response may begin after several
	// steps.
	until, moved int64
}

// until returns when a unit ends to count by the callers' clock, which never steps: when nothing
// counts any more of what was spent by then.
func (t *Taken) until() int64 {
	if t.Overflow {
		return t.At + int64(t.Reset)
	}
	return t.At - t.offset.NS() + int64(t.Reset)
}

// reserve notes what was just taken, in an epoch or in a sketch of that number. It notes as
// well at which rate a bucket drains now, also where that was denied. The stripe's lock is
// held.
func (t *Table[S]) reserve(l algorithms.Limit, key keys.Key, taken *Taken, epoch int64) {
	if taken.number = uint32(epoch); taken.Allowed {
		t.unsettled.Add(key, taken.N, epoch, taken.until(), l.Window)
	}
	if !taken.Overflow && t.machine.Drains() {
		t.unsettled.Drain(key, l.N, taken.until())
	}
}

// Hold returns what an allowed Take has reserved.
func (t *Table[S]) Hold(l algorithms.Limit, key keys.Key, taken Taken) Reserved {
	return Reserved{
		Taken: taken, limit: l, until: taken.until(), moved: t.movedBy(taken.offset),
		group: t.unsettled.Find(key, taken.number, taken.until(), l.Window),
	}
}

// Settle ends what is reserved, once, at now by the callers' clock. refunds is set where the
// response doesn't count: then the unit is refunded, unless it has ended to count by itself, so
// that what others spent since is not refunded in its place.
func (t *Table[S]) Settle(key keys.Key, r Reserved, now int64, refunds bool) {
	if refunds = refunds && now < r.until && r.group != nil && !t.unsettled.Ended(key, r.group, now); refunds && r.Overflow {
		t.overflow.Load().Give(r.number, key, r.At, r.N)
	}
	b := t.config.Load()
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	if !ok || r.Overflow {
		t.unsettled.Remove(key, r.group, r.N)
		return
	}
	e, o := entry[S]{slot: st.slot(i)}, t.clock()
	at := r.At + t.movedBy(o) - r.moved
	if b.IsShared() {
		e = t.applyStep(st, r.limit, i, at, o)
		e.flags &^= confirm
		st.markDirty(i, e)
	}
	l, epoch := t.machine.Ledger(&e.state), t.unsettled.Remove(key, r.group, r.N)
	if b.IsShared() {
		l.Resend |= algorithms.Settled
	}
	if refunds && !t.isForgiven(e.id, r.Taken) {
		RefundReserved(t.machine, &e.state, r.limit, at, epoch, r.N, at != r.At)
	}
}

// Unsettled returns what is reserved.
func (t *Table[S]) Unsettled() *Unsettled { return &t.unsettled }

// movedBy returns how far the clock had stepped in all when the offset was o, which is the present
// one or was so before the last step.
func (t *Table[S]) movedBy(o clock.Offset) int64 {
	moved := clock.Offset(t.moved.Load())
	if parity(moved) == parity(o) {
		return moved.NS()
	}
	return moved.NS() - t.step.Load()
}

// AdmitsSettled reports whether n units of a key, which were denied at now, would be admitted if
// all that is reserved of it were refunded.
func (t *Table[S]) AdmitsSettled(l algorithms.Limit, key keys.Key, now, n int64) bool {
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	s := t.overflow.Load()
	if !ok {
		sum := t.unsettled.Sum(key, now, 0)
		return sum > 0 && s != nil && s.Spent(key, now)-sum+n <= s.Limit(l)
	}
	e, at, pending := entry[S]{slot: st.slot(i)}, t.clock().In(now), int64(0)
	if b := t.config.Load(); b.IsShared() {
		e, pending = t.observe(st, b, l, i, at, t.clock())
	}
	if s != nil {
		l.Size = max(0, l.Size-t.spilled(st, l, i, now))
	}
	ask := unsettledAsk{Limit: l, Key: key, Now: now, At: at, Pending: pending, N: n}
	return admitsUnsettled(&t.unsettled, t.machine, &e.state, ask)
}
