package table

import (
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A full table counts further keys in a sketch. It is made before it is needed, and freed when
// nothing in it counts any more.

// takeOverflow decides for a key that found no slot. a.Now is the caller's clock, which the sketch
// goes by: it never steps back, and what the store's clock does is of no concern to counts that are
// this node's own. The stripe's lock is held.
func (t *Table[S]) takeOverflow(st *stripe[S], a *Ask) Taken {
	saved, again := t.savedOf(st, a.Limit, a.Key, a.Raw, a.Now)
	if again {
		st.mu.Unlock()
		defer st.mu.Lock()
		return t.Take(a.Limit, a.Key, a.Raw, a.Now, a.N, a.Want)
	}
	if a.N > 0 && a.Want&Again == 0 {
		t.overflowed.Add(1)
	}
	for {
		s := t.overflow.Load()
		if s == nil || !s.Suits(a.Limit) {
			s = t.widen(a.Limit, a.Now)
		}
		if saved > 0 && s.Charge(a.Limit, a.Key, a.Now, saved, true) {
			saved = 0
		}
		if d, ok := s.Take(a.Limit, a.Key, a.Now, a.N, a.Want); ok {
			taken := Taken{Decision: d, N: a.N, At: a.Now, Overflow: true, number: s.Number()}
			if a.Want&Reserve != 0 && d.Allowed && a.N > 0 {
				t.reserve(a.Limit, a.Key, &taken, int64(taken.number))
			}
			return taken
		}
	}
}

// savedOf takes out what an earlier process saved of a key, as units to be counted in the sketch.
// The stripe's lock is let go while the key is hashed; again is set where it has got a slot
// meanwhile.
func (t *Table[S]) savedOf(st *stripe[S], l algorithms.Limit, key keys.Key, raw []byte, now int64) (units int64, again bool) {
	if t.saved.IsEmpty() {
		return 0, false
	}
	st.mu.Unlock()
	id := keys.IDOf(raw)
	st.mu.Lock()
	if _, s := st.find(key); s != nil {
		return 0, true
	}
	var empty, s S
	if now = t.clock().In(now); !t.restore(&s, l, now, id) {
		return 0, false
	}
	left := t.machine.Take(&s, l, now, 0, 0).Remaining
	return t.machine.Take(&empty, l, now, 0, 0).Remaining - left, false
}

// widen returns a sketch that suits l and has as many cells as max_keys asks for: the one that is
// there, or a new one. What is counted in the one before it goes on counting. It is made once,
// however many requests need it at once: it is large.
func (t *Table[S]) widen(l algorithms.Limit, now int64) *sketch {
	t.widening.Lock()
	defer t.widening.Unlock()
	s, width := t.overflow.Load(), sketchWidthFor(t.maxKeys.Load())
	if s != nil && s.Suits(l) && s.Width() >= width {
		return s
	}
	b, configured := t.config.Load(), l
	if b != nil {
		configured = b.Limit
	}
	if b == nil || b.Mixed { // the window that suits the burst of one limit doesn't suit others
		l.Size, configured.Size = max(l.Size, l.N), max(configured.Size, configured.N)
	}
	next := s.Next(width, now, l, configured)
	t.overflow.Store(next)
	return next
}

// prepare makes the sketch of a table that is nearly full, so that no request has to.
func (t *Table[S]) prepare(l algorithms.Limit, now int64) {
	if t.overflow.Load() != nil || !t.isNearlyFull() || t.preparing.Swap(true) {
		return
	}
	go func() {
		defer t.preparing.Store(false)
		if t.overflow.Load() == nil {
			t.widen(l, now)
		}
	}()
}

// isNearlyFull reports whether the table holds seven eighths of the keys that it may.
func (t *Table[S]) isNearlyFull() bool { return t.keys.Load()*8 >= t.maxKeys.Load()*7 }

// release gives a sketch back in which nothing counts any more. One that was only prepared stays as
// long as the table is nearly full.
func (t *Table[S]) release(now int64) {
	if s := t.overflow.Load(); s != nil && s.Expire(now, s.Used() || !t.isNearlyFull()) {
		t.overflow.CompareAndSwap(s, nil)
	}
}

// Overflowing reports whether keys share the sketch, or did until a short time ago.
func (t *Table[S]) Overflowing() bool {
	s := t.overflow.Load()
	return s != nil && s.Used()
}

// OverflowBytes is the memory of the sketch, 0 where there is none.
func (t *Table[S]) OverflowBytes() int64 { return t.overflow.Load().Bytes() }

// spilled is what a key that has a slot spent in the sketch before it had one, as far as it still
// counts: it is held against the key like what other nodes have spent unseen, and never becomes
// part of its state, which is sent to them. now is the caller's clock.
func (t *Table[S]) spilled(st *stripe[S], l algorithms.Limit, i uint32, now int64) int64 {
	s := t.overflow.Load()
	if s == nil || !st.marks.Has(i, s, now) {
		return 0
	}
	units := s.Spent(st.slot(i).key, now)
	if units == 0 {
		st.marks.Remove(i)
	}
	return max(0, units-excess(s, l))
}

// excess is what a sketch admits at once beyond the size of a bucket. As long as a key spends no
// more than both admit together, a counter of its own doesn't hold it against the key.
func excess(s *sketch, l algorithms.Limit) int64 { return max(0, s.Limit(l)-l.Size) }

// takeSpilled decides for a key that has a slot, and has spent units in the sketch before. These
// units make the limit smaller by as much. A denial that they alone cause is marked Estimated.
//
// The wait has two parts: the sketch knows until when the units count, and the machine how long the
// key waits for what it has spent in its slot. The one that binds is returned. a.Now is in the
// table's time.
func (t *Table[S]) takeSpilled(b *SyncConfig, e entry[S], a *Ask, now, pending, spilled int64) (d algorithms.Decision) {
	left, want := a.Limit, a.Want
	known := t.machine.Take(&e.state, a.Limit, now, 0, 0)
	others := t.machine.Take(&e.state, a.Limit, now, 0, pending).Remaining < known.Remaining
	left.Size = max(0, left.Size-spilled)
	if d.Result = t.machine.Take(&e.state, left, now, a.N, pending); !d.Allowed {
		want |= algorithms.WantRetry
		d.Estimated = known.Allowed && a.N <= known.Remaining
	}
	d.Waits = t.machine.Waits(&e.state, a.Limit, now, a.N, pending+spilled, want)
	if d.Estimated && others {
		d.Retry = e.Retry(b.Rate, now, d.Retry)
	}
	s := t.overflow.Load()
	if s == nil {
		return d
	}
	caller := now - t.clock().NS()
	if room := a.Limit.Size; !d.Allowed { // of which the slot has nothing once it has waited
		if d.Estimated {
			room = known.Remaining
		}
		fades := s.Until(e.key, caller, max(0, room-a.N)+excess(s, a.Limit))
		if d.Estimated && !others || d.Retry < fades {
			d.Retry = fades
		}
	}
	if want&algorithms.WantNext != 0 {
		if next := s.Until(e.key, caller, max(0, s.Spent(e.key, caller)-1)); next > 0 && (d.Next == 0 || next < d.Next) {
			d.Next = next
		}
	}
	if want&algorithms.WantReset != 0 {
		d.Reset = max(d.Reset, s.Until(e.key, caller, 0))
	}
	return d
}
