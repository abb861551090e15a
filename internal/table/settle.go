package table

import (
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// Units that are taken for a request whose response decides how much it costs. They are spent like
// all others, and noted apart until they are settled: kept, or refunded as far as they still count.
// What the request has cost beyond them is charged.

// Reserve says in the want of a Take that its units are reserved, until Settle. It goes together
// with WantReset, which tells until when they count.
const Reserve algorithms.Want = 1 << 6

// InParts says in the want of a Take with Reserve that a part of the units may be refunded.
const InParts algorithms.Want = 1 << 5

// Reserved is what a Take has reserved.
type Reserved struct {
	Taken
	limit algorithms.Limit
	group *ReservedGroup
	// until is the instant of the callers' clock at which it ends to count.
	until int64
}

// until returns when a unit ends to count by the callers' clock, which never steps: when nothing
// counts any more of what was spent by then.
func (t *Taken) until() int64 {
	return saturate.Add(t.At-t.clock.ahead, int64(t.Reset))
}

// reserve notes what was just taken, in an epoch. It notes as well at which rate a bucket drains
// now, also where that was denied.
func (t *Table[S]) reserve(l algorithms.Limit, key keys.Key, taken *Taken, epoch int64) {
	if taken.reservedEpoch = uint32(epoch); taken.Allowed {
		t.reservations.Add(key, taken.N, epoch, taken.until(), l.Window)
	}
	if t.kind.Traits().Draining {
		t.reservations.SetDrainRate(key, l.N, taken.until())
	}
}

// reserveInParts is reserve for a bucket of which a part of the units may be refunded. Where the
// store denies a request of a zone, it has spent nothing in the limits that would have room either.
func (t *Table[S]) reserveInParts(l algorithms.Limit, key keys.Key, taken *Taken) {
	now := taken.At - taken.clock.ahead
	t.reservations.RescaleDrains(key, l.N, now)
	if taken.Allowed && !taken.Unspent {
		taken.reservation = t.reservations.AddOne(key, taken.N, 0, taken.until(), l.N, l.Window)
	}
}

// ReservationOf returns what an allowed Take has reserved.
func (t *Table[S]) ReservationOf(l algorithms.Limit, key keys.Key, taken Taken) Reserved {
	at, key := t.of(key, &Taken{Overflow: taken.Overflow})
	r := Reserved{Taken: taken, limit: l, until: taken.until()}
	if taken.reservation != 0 {
		r.group = at.reservations.FindOne(key, taken.reservation)
	} else {
		r.group = at.reservations.Find(key, taken.reservedEpoch, r.until, l.Window)
	}
	return r
}

// RolledBack says to Settle that the request is denied elsewhere, and so has never come: all of its
// units are refunded, also what has drained of them since, as that would have drained of others.
const RolledBack = -1

// Settle ends what is reserved, once, at now by the callers' clock, where the request has cost m
// units in truth. What it has cost less is refunded, as far as that has not ended to count by
// itself, so that what others spent since is not refunded in its place. What it has cost more is
// charged now. Of a key that was reset since neither is.
func (t *Table[S]) Settle(key keys.Key, r Reserved, now, m int64) {
	t, key = t.of(key, &r.Taken)
	b := t.config.Load()
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	if !ok { // it was reset, as else what is reserved keeps it
		t.reservations.Remove(key, r.group, r.N)
		return
	}
	e, at := entry[S]{slot: st.slot(i)}, st.since(r.Taken)
	if b.IsSynced() {
		e = t.withSyncState(st, i)
		t.changed(st, b, e, i)
	}
	back := r.N
	switch {
	case m != RolledBack:
		back = t.refundable(&e.state, key, r, st.clock.In(now), now, r.N-m)
	case r.group == nil: // the key was reset since
		back = 0
	}
	m = max(m, 0)
	if back > 0 && r.reservation != 0 {
		t.reservations.ExpireSooner(key, r.group, back)
	}
	epoch, stood := t.reservations.Remove(key, r.group, r.N)
	forgiven := !stood || t.wasReset(st, e.id, r.Taken)
	if b.IsSynced() {
		t.machine.Ledger(&e.state).Resend |= algorithms.Settled
	}
	if back > 0 && !forgiven {
		RefundReserved(t.machine, &e.state, r.limit, at, epoch, back, m == 0, at != r.At)
	}
	if m > r.N && !forgiven {
		t.machine.Charge(&e.state, r.limit, st.clock.In(now), m-r.N)
	}
}

// refundable returns how many of n units of a reservation still count at now, and so can be
// refunded.
func (t *Table[S]) refundable(s *S, key keys.Key, r Reserved, at, now, n int64) int64 {
	switch {
	case n <= 0 || r.group == nil:
		return 0
	case r.reservation != 0:
		undrained, refunded := t.reservations.Undrained(key, r.group, now)
		level, _ := t.machine.Level(s, r.limit, at)
		if r.addedBefore > 0 { // what was added since stands above, but for what is refunded here
			takenAfter := t.bucket.Added(s) - r.addedBefore - refunded
			if takenAfter < 0 { // the store has forgotten
				return 0
			}
			undrained = min(undrained, int64(level)-takenAfter)
		}
		return max(0, min(n, undrained, int64(level)))
	case now >= r.until || t.reservations.Ended(key, r.group, now):
		return 0
	}
	return n
}

// Reservations returns what is reserved.
func (t *Table[S]) Reservations() *Reservations { return &t.reservations }

// AdmitsReleased reports whether n units of a key, which were denied at now, would be admitted if
// all that is reserved of it were refunded.
func (t *Table[S]) AdmitsReleased(l algorithms.Limit, key keys.Key, now, n int64) bool {
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	if !ok {
		shared := t.overflow.Load()
		return shared != nil && shared.AdmitsReleased(l, overflowOf(key), now, n)
	}
	e, at, unseen := entry[S]{slot: st.slot(i)}, st.clock.In(now), int64(0)
	if b := t.config.Load(); b.IsSynced() {
		e, unseen = t.observe(st, b, l, i, at)
	}
	ask := reservedAsk{Limit: l, Key: key, Now: now, At: at, Unseen: unseen, N: n}
	return t.admitsReleased(&e.state, ask)
}
