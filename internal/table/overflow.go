package table

import (
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// Keys beyond max_keys share counters, by the hash of this process, in a table of so many that is
// not synced. None gets more than its limit there, and some get less.

// overflowCounters is how many there are at most.
const overflowCounters = 1 << 16

// bytesOfKey is about what a counter takes: docs/internals/costs.md.
const bytesOfKey = 190

// overflowOf is the counter that a key beyond max_keys shares with others.
func overflowOf(key keys.Key) keys.Key { return keys.Key{A: key.A>>48<<48 | key.A>>48, B: 1} }

// overflowTable returns the shared counters, and makes them where there are none.
func (t *Table[S]) overflowTable() *Table[S] {
	shared := t.overflow.Load()
	for shared == nil {
		if made := NewOf(t.kind, t.machine, overflowCounters); t.overflow.CompareAndSwap(nil, made) {
			return made
		}
		shared = t.overflow.Load() // nil again where a reset came in between
	}
	return shared
}

// takeOverflow decides for a key that found no slot. What an earlier process counted of it is spent
// in its shared counter first.
func (t *Table[S]) takeOverflow(a *Ask, taken *Taken) {
	if a.N > 0 && a.Want&Retried == 0 {
		t.overflowed.Add(1)
	}
	if !t.saved.IsEmpty() {
		at := t.in(a.Now)
		t.chargeOverflow(a.Limit, a.Key, a.Now, t.spentOf(t.saved.Take(keys.IDOf(a.Raw), a.Limit, at), a.Limit, at))
	}
	shared := *a
	shared.Key, shared.Raw = overflowOf(a.Key), noBytes
	t.overflowTable().Decide(&shared, taken)
	taken.Overflow = true
}

// spentOf is what an earlier process saved of a key, in units.
func (t *Table[S]) spentOf(reports []algorithms.Report, l algorithms.Limit, at int64) int64 {
	var empty, s S
	t.restore(&s, l, at, reports)
	return t.machine.Take(&empty, l, at, 0, 0).Remaining - t.machine.Take(&s, l, at, 0, 0).Remaining
}

// noBytes stand for those of a key that shares its counter.
var noBytes = []byte{}

// chargeOverflow counts n units of a key without a slot, unasked.
func (t *Table[S]) chargeOverflow(l algorithms.Limit, key keys.Key, now, n int64) {
	if n <= 0 {
		return
	}
	b := t.overflowTable()
	st, i, ok := b.lockOrEnter(l, overflowOf(key), noBytes, now)
	defer st.mu.Unlock()
	if ok {
		b.machine.Charge(&st.slot(i).state, l, now, n)
	}
}

// of is the table that a request's units are of, and its key there. It clears Overflow: in that
// table they have a counter of their own.
func (t *Table[S]) of(key keys.Key, taken *Taken) (*Table[S], keys.Key) {
	if !taken.Overflow {
		return t, key
	}
	taken.Overflow = false
	return t.overflowTable(), overflowOf(key)
}

// sweepOverflow drops what is idle of the shared counters.
func (t *Table[S]) sweepOverflow(now int64) {
	if shared := t.overflow.Load(); shared != nil {
		b := *t.config.Load()
		b.Interval = 0
		shared.config.Store(&b)
		shared.Sweep(now)
	}
}

// Overflowing reports whether keys share counters, or did until a short time ago.
func (t *Table[S]) Overflowing() bool { return t.OverflowBytes() > 0 }

// OverflowBytes is about the memory of the shared counters, 0 where there are none.
func (t *Table[S]) OverflowBytes() int64 {
	if shared := t.overflow.Load(); shared != nil {
		return int64(shared.Keys()) * bytesOfKey
	}
	return 0
}
