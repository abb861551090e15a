package table

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// A full table counts further keys in a sketch. It is made before it is needed, and given back when
// nothing in it counts any more.

// takeOverflow decides for a key that found no slot. now is the caller's clock, which the sketch
// goes by: it never steps back, and what the store's clock does is of no concern to counts that are
// this node's own. The shard's lock is held.
func (t *Table[S]) takeOverflow(sh *shard[S], alg algorithms.Algorithm[S], key Key, raw []byte, now, n int64) Taken {
	saved, again := t.savedOf(sh, alg, key, raw, now)
	if again {
		sh.mu.Unlock()
		defer sh.mu.Lock()
		return t.Take(alg, key, raw, now, n)
	}
	t.overflowed.Add(1)
	for {
		s := t.overflow.Load()
		if s == nil || !s.suits(alg) {
			s = t.widen(alg, now)
		}
		if saved > 0 && s.charge(alg, key, now, saved, true) {
			saved = 0
		}
		if d, ok := s.take(alg, key, now, n); ok {
			return Taken{Decision: d, At: now, Overflow: true, sketch: s.number}
		}
	}
}

// savedOf takes out what an earlier process saved of a key, as units to be counted in the sketch.
// The shard's lock is let go while the key is hashed; again says that it has got a slot meanwhile.
func (t *Table[S]) savedOf(sh *shard[S], alg algorithms.Algorithm[S], key Key, raw []byte, now int64) (units int64, again bool) {
	if t.resume.parts.Load() == nil {
		return 0, false
	}
	sh.mu.Unlock()
	id := IDOf(raw)
	sh.mu.Lock()
	if _, ok := sh.find(key); ok {
		return 0, true
	}
	reports := t.resume.take(id)
	if reports == nil {
		return 0, false
	}
	var empty, s S
	restore(alg, &s, t.clock(now), reports)
	return alg.Take(&empty, t.clock(now), 0, 0).Remaining - alg.Take(&s, t.clock(now), 0, 0).Remaining, false
}

// widen returns a sketch that suits alg and has as many cells as max_keys asks for: the one that is
// there, or a new one. What is counted in the one before it goes on counting. It is made once,
// however many requests need it at once: it is large.
func (t *Table[S]) widen(alg algorithms.Algorithm[S], now int64) *sketch {
	t.widening.Lock()
	defer t.widening.Unlock()
	s := t.overflow.Load()
	width := widthFor(t.maxKeys.Load())
	if s != nil && s.suits(alg) && s.width() >= width {
		return s
	}
	window := windowOf(alg)
	before := s
	if s != nil && s.last.Load() == retired {
		before = nil
	}
	if before != nil {
		window, width = s.window, max(width, s.width()) // the numbers of its epochs hold on
	}
	limit := limitIn(alg, window)
	if b := t.background.Load(); b != nil {
		limit = max(limit, limitIn(b.Algorithm, window))
	}
	next := newSketch(width, limit, window)
	t.sketches++
	next.number, next.born = t.sketches, now/int64(window)
	next.last.Store(next.born)
	if before != nil {
		next.before.Store(before)
		next.used.Store(before.used.Load())
	}
	t.overflow.Store(next)
	return next
}

// prepare makes the sketch of a table that is nearly full, so that no request has to.
func (t *Table[S]) prepare(alg algorithms.Algorithm[S], now int64) {
	if t.overflow.Load() != nil || !t.crowded() || t.preparing.Swap(true) {
		return
	}
	go func() {
		defer t.preparing.Store(false)
		if t.overflow.Load() == nil {
			t.widen(alg, now)
		}
	}()
}

// crowded reports whether the table holds seven eighths of the keys that it may.
func (t *Table[S]) crowded() bool { return t.keys.Load()*8 >= t.maxKeys.Load()*7 }

// release gives a sketch back in which nothing counts any more. One that was only prepared stays as
// long as the table is nearly full.
func (t *Table[S]) release(now int64) {
	s := t.overflow.Load()
	if s == nil {
		return
	}
	s.forgetBefore(now)
	if (s.used.Load() || !t.crowded()) && s.retire(now) {
		t.overflow.CompareAndSwap(s, nil)
	}
}

// Overflowing reports whether keys share the sketch, or did until a short time ago.
func (t *Table[S]) Overflowing() bool {
	s := t.overflow.Load()
	return s != nil && s.used.Load()
}

// OverflowBytes is the memory of the sketch, 0 where there is none.
func (t *Table[S]) OverflowBytes() (sum int64) {
	for s := t.overflow.Load(); s != nil; s = s.before.Load() {
		sum += s.bytes()
	}
	return sum
}

// spilled is what a key that has a slot spent in the sketch before it had one, as far as it still
// counts: it is held against the key like what other nodes have spent unseen, and never becomes
// part of its state, which is sent to them. now is the caller's clock.
func (t *Table[S]) spilled(sh *shard[S], alg rule, i uint32, now int64) int64 {
	s := t.overflow.Load()
	if s == nil || sh.marks == nil || !sh.marks.has(i, s, now) {
		return 0
	}
	units := s.spent(sh.place(i).key, now)
	if units == 0 {
		sh.marks.remove(i)
	}
	return max(0, units-excess(s, alg))
}

// excess is what a sketch admits at once beyond the size of a bucket. As long as a key spends no
// more than both admit together, a counter of its own doesn't hold it against the key.
func excess(s *sketch, alg rule) int64 { return max(0, limitIn(alg, s.window)-sizeOf(alg)) }

// amendSpilled puts into a decision how long what was spent in the sketch keeps a key waiting. now
// is in the table's time; others says that what other nodes are taken to have spent was held
// against the key as well, and the decision says how long it waits for that.
func (t *Table[S]) amendSpilled(d *algorithms.Decision, alg algorithms.Algorithm[S], state *S, key Key, now, n int64, others bool) {
	s := t.overflow.Load()
	if s == nil {
		return
	}
	caller := now - t.offset.Load()&^1
	if d.Estimated {
		free := alg.Take(state, now, 0, 0).Remaining
		fades := s.until(key, caller, max(0, free-n)+excess(s, alg))
		if !others || d.RetryAfter < fades {
			d.RetryAfter = fades
		}
	}
	if next := s.until(key, caller, max(0, s.spent(key, caller)-1)); next > 0 && (d.NextAfter == 0 || next < d.NextAfter) {
		d.NextAfter = next
	}
	d.ResetAfter = max(d.ResetAfter, s.until(key, caller, 0))
}

// marks name the places of keys that got them while the sketch counted something of theirs. What
// they spent there has faded when the epoch after that of the mark is over.
type marks struct {
	window time.Duration
	epoch  int64
	bits   [2][]uint32 // of chunks: places marked in the epoch, and in the one before
}

// roll brings the marks to the epoch of now in a sketch.
func (m *marks) roll(s *sketch, now int64) {
	epoch := s.at(now)
	if m.window != s.window {
		m.window, m.epoch, m.bits = s.window, epoch, [2][]uint32{}
	}
	switch ahead := epoch - m.epoch; {
	case ahead <= 0:
	case ahead == 1:
		m.bits = [2][]uint32{nil, m.bits[0]}
	default:
		m.bits = [2][]uint32{}
	}
	m.epoch = max(m.epoch, epoch)
}

func (m *marks) has(i uint32, s *sketch, now int64) bool {
	if m.bits[0] == nil && m.bits[1] == nil {
		return false
	}
	m.roll(s, now)
	return m.at(0, i) || m.at(1, i)
}

func (m *marks) at(age int, i uint32) bool {
	c := int(i / chunkSize)
	return c < len(m.bits[age]) && m.bits[age][c]>>(i%chunkSize)&1 != 0
}

func (m *marks) add(i uint32, s *sketch, now int64) {
	m.roll(s, now)
	m.set(0, i)
}

func (m *marks) set(age int, i uint32) {
	for int(i/chunkSize) >= len(m.bits[age]) {
		m.bits[age] = append(m.bits[age], 0)
	}
	m.bits[age][i/chunkSize] |= 1 << (i % chunkSize)
}

func (m *marks) remove(i uint32) {
	if m == nil {
		return
	}
	for age := range m.bits {
		if m.at(age, i) {
			m.bits[age][i/chunkSize] &^= 1 << (i % chunkSize)
		}
	}
}

// move gives a key's marks to the place that it moves to.
func (m *marks) move(from, to uint32) {
	if m == nil {
		return
	}
	for age := range m.bits {
		if m.at(age, from) {
			m.set(age, to)
		}
	}
	m.remove(from)
}
