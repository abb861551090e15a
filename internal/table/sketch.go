// A sketch counts keys that have no counter of their own, in memory that doesn't grow with them. It
// counts too much rather than too little.

package table

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// MinWidth and MaxWidth bound how many words a row has. With MaxWidth all rows take 32 MiB.
const (
	minSketchWidth = 1 << 18
	maxSketchWidth = 1 << 20
)

const (
	rows      = 4
	countBits = 24
)

// A sketch counts the keys that find no slot in a full table: a count-min sketch whose cells are
// two-counter windows, whatever the algorithm. A cell holds at least what each of its keys spent,
// so no key gets more than its limit; keys that share all their cells with busy ones get less. The
// more cells a row has for each busy key, the rarer that is.
//
// Source: Cormode and Muthukrishnan, An Improved Data Stream Summary: The Count-Min Sketch and its
// Applications, 2005.
//
// A word packs as many cells as the limit leaves room for, two counts each:
//
//	bits 63..48        47..24                      23..0
//	epoch, low bits    counts of the one before    counts of the epoch
//
// A count has 24 bits, or a half, a third, a sixth, an eighth or a twelfth of that where the limit
// is less than what they hold. A count that has reached its end stays there for its window. A limit
// beyond it, 2^24 - 2, is counted in steps of several units, of which what is spent takes as many
// as hold it.
type sketch struct {
	words  [rows][]atomic.Uint64
	window time.Duration
	cells  uint64 // in a word: 1, 2, 3, 6, 8 or 12
	bits   uint64 // of a count
	most   int64  // a count
	step   int64  // how many units a count of one stands for
	number uint32 // of the sketches that were made

	// last is the newest epoch in which a key was counted, or the one in which the sketch was made;
	// retired once the table has given it back. A request that read its clock in an earlier one
	// counts in this.
	last atomic.Int64
	used atomic.Bool
	// before is the sketch whose place this one took in the epoch born. It goes on counting until
	// its window is over.
	before atomic.Pointer[sketch]
	born   int64
}

// retired is no epoch.
const retired = math.MaxInt64

// minSketchWindow is the shortest window that a sketch counts in, as it is for limits.
const minSketchWindow = 100 * time.Millisecond

// windowOf is the window in which a sketch counts for a limit: its own. A bucket that holds less
// than drains in it is counted in the time in which it drains, as that bounds what it admits at
// once.
func windowOf(l algorithms.Limit) time.Duration {
	if l.N == 0 || l.Size >= l.N {
		return time.Duration(l.Window)
	}
	drains := saturate.MulDiv(l.Window, max(l.Size, 1), l.N)
	return time.Duration(max(drains, min(l.Window, int64(minSketchWindow))))
}

// limitIn is how much a limit admits in the window of a sketch.
func limitIn(l algorithms.Limit, window time.Duration) int64 {
	if l.N == 0 || int64(window) >= l.Window {
		return l.N
	}
	return saturate.MulDivUp(l.N, int64(window), 0, l.Window)
}

// sketchWidthFor is how many words a row has for a table of maxKeys.
func sketchWidthFor(maxKeys int64) int64 {
	return min(max(minSketchWidth, 8*min(maxKeys, maxSketchWidth)), maxSketchWidth)
}

// sketchesMade counts the sketches.
var sketchesMade atomic.Uint32

// Next returns a sketch with at least width words in a row that suits limits, in the window of the
// first of them. It takes the place of s at now; what s has counted goes on counting. s may be nil.
func (s *sketch) Next(width, now int64, limits ...algorithms.Limit) *sketch {
	if s != nil && s.last.Load() == retired {
		s = nil
	}
	window := windowOf(limits[0])
	if s != nil {
		window, width = s.window, max(width, s.Width()) // the numbers of its epochs go on
	}
	limit := int64(0)
	for _, l := range limits {
		limit = max(limit, limitIn(l, window))
	}
	next := newSketch(width, limit, window)
	next.born = now / int64(window)
	next.last.Store(next.born)
	if s != nil {
		next.before.Store(s)
		next.used.Store(s.used.Load())
	}
	return next
}

// newSketch makes a sketch with width words in a row, for a limit in a window.
func newSketch(width, limit int64, window time.Duration) *sketch {
	s := &sketch{cells: cellsFor(limit), window: max(window, 1), number: sketchesMade.Add(1)}
	s.bits = countBits / s.cells
	s.most = 1<<s.bits - 1
	s.step = 1 + (limit-1)/(s.most-1)
	for r := range s.words {
		s.words[r] = make([]atomic.Uint64, width)
	}
	return s
}

// cellsFor is how many cells fit into a word when counts must tell a limit from one more.
func cellsFor(limit int64) uint64 {
	for _, cells := range []uint64{12, 8, 6, 3, 2} {
		if limit < 1<<(countBits/cells)-1 {
			return cells
		}
	}
	return 1
}

// Suits reports whether the sketch is not freed, and its counts can tell a limit from one
// more, as far as any can.
func (s *sketch) Suits(l algorithms.Limit) bool {
	limit := limitIn(l, s.window)
	return s.last.Load() != retired && s.cells <= cellsFor(limit) && limit <= s.step*(s.most-1)
}

// Used reports whether a key was counted.
func (s *sketch) Used() bool { return s.used.Load() }

// Limit is how much l admits in the window of the sketch.
func (s *sketch) Limit(l algorithms.Limit) int64 { return limitIn(l, s.window) }

// Last is when the newest epoch began; ok is false where the sketch has been freed.
func (s *sketch) Last() (at int64, ok bool) {
	last := s.last.Load()
	return last * int64(s.window), last != retired
}

// Number tells the sketch from all others, for Give.
func (s *sketch) Number() uint32 { return s.number }

// Width is how many words a row has.
func (s *sketch) Width() int64 { return int64(len(s.words[0])) }

// A cell is a place in a word.
type cell struct {
	word  *atomic.Uint64
	shift uint64
}

func (s *sketch) cell(row int, key keys.Key) cell {
	place, _ := bits.Mul64(key.A+uint64(row)*(key.B|1), uint64(len(s.words[row]))*s.cells)
	return cell{&s.words[row][place/s.cells], place % s.cells * s.bits}
}

// enter is the epoch in which a request of now counts; false where the sketch has been freed.
func (s *sketch) enter(now int64) (epoch int64, ok bool) {
	if !s.used.Load() {
		s.used.Store(true)
	}
	for epoch = now / int64(s.window); ; {
		switch last := s.last.Load(); {
		case last == retired:
			return 0, false
		case last >= epoch:
			return last, true
		case s.last.CompareAndSwap(last, epoch):
			return epoch, true
		}
	}
}

// Epoch is the number of the epoch of now, or the last one where that is later.
func (s *sketch) Epoch(now int64) int64 {
	epoch := now / int64(s.window)
	if last := s.last.Load(); last != retired {
		epoch = max(epoch, last)
	}
	return epoch
}

// spentIn returns what the cells of a key hold, in units: what it has spent in an epoch and in the
// one before, or more.
func (s *sketch) spentIn(key keys.Key, epoch int64) (current, before int64) {
	current, before = s.most, s.most
	for row := range s.words {
		c := s.cell(row, key)
		word := s.rolled(c.word.Load(), epoch)
		current, before = min(current, s.count(word, c.shift)), min(before, s.count(word, c.shift+countBits))
	}
	current, before = current*s.step, before*s.step
	if b := s.before.Load(); b != nil {
		current2, before2 := b.spentIn(key, epoch)
		current, before = current+current2, before+before2
	}
	return current, before
}

// countAll is the limit of a window that is only asked what it counts: more than any sum of cells.
const countAll = 1 << 62

// sketchMachine is the machine that decides by two counters.
var sketchMachine = algorithms.MachineOf[algorithms.WindowState](algorithms.SlidingWindow)

// state is a key's two counters as those of a window under a limit. Late requests count at the
// start of their epoch.
func (s *sketch) state(key keys.Key, limit, epoch, now int64) (l algorithms.Limit, state algorithms.WindowState, at int64) {
	current, before := s.spentIn(key, epoch)
	l = algorithms.Limit{N: limit, Size: limit, Window: int64(s.window), History: 1}
	at = max(now, epoch*int64(s.window))
	sketchMachine.Advance(&state, l, at)
	ledger := sketchMachine.Ledger(&state)
	ledger.Cur.Own, ledger.Prev.Own = current, before
	return l, state, at
}

// Take asks for n units of a key at now, and works out the waits that are wanted, of a denial Retry
// in any case. Takes of one key must not overlap; others may add to its cells at any time, which
// can only make the answer more careful. ok is false where the sketch has been freed.
func (s *sketch) Take(
	l algorithms.Limit, key keys.Key, now, n int64, want algorithms.Want,
) (d algorithms.Decision, ok bool) {
	epoch, ok := s.enter(now)
	if !ok {
		return d, false
	}
	l, state, at := s.state(key, min(limitIn(l, s.window), s.step*(s.most-1)), epoch, now)
	if d.Result = sketchMachine.Take(&state, l, at, n, 0); d.Allowed {
		s.add(key, epoch, n)
	} else {
		want |= algorithms.WantRetry
	}
	d.Waits = sketchMachine.Waits(&state, l, at, n, 0, want)
	return d, true
}

// Spent is what a key has spent that still counts, or more. It is 0 once the sketch has been given
// back.
func (s *sketch) Spent(key keys.Key, now int64) int64 {
	l, state, at := s.state(key, countAll, s.Epoch(now), now)
	return countAll - sketchMachine.Take(&state, l, at, 0, 0).Remaining
}

// Until is how long it takes until no more than target of what a key has spent counts.
func (s *sketch) Until(key keys.Key, now, target int64) time.Duration {
	l, state, at := s.state(key, countAll, s.Epoch(now), now)
	return sketchMachine.Waits(&state, l, at, countAll-target, 0, algorithms.WantRetry).Retry
}

// Charge spends n units of a key unasked: where it is bounded, only as far as the key has spent
// less than its limit in this window. It returns false where the sketch has been freed.
func (s *sketch) Charge(l algorithms.Limit, key keys.Key, now, n int64, bounded bool) bool {
	epoch, ok := s.enter(now)
	if !ok {
		return false
	}
	if bounded {
		current, _ := s.spentIn(key, epoch)
		n = min(n, limitIn(l, s.window)-current)
	}
	if n > 0 {
		s.add(key, epoch, n)
	}
	return true
}

// Give takes n units back that were taken at an instant, as far as the cells still stand in that
// epoch. number says which sketch they were taken in.
func (s *sketch) Give(number uint32, key keys.Key, taken, n int64) {
	s.GiveBut(number, key, taken, n, 0)
}

// GiveBut is Give of all but m of the units.
func (s *sketch) GiveBut(number uint32, key keys.Key, taken, n, m int64) {
	for s != nil && s.number != number {
		s = s.before.Load()
	}
	if s == nil {
		return
	}
	epoch := taken / int64(s.window)
	n = s.steps(n) - s.steps(m)
	for row := range s.words {
		if c := s.cell(row, key); uint16(c.word.Load()>>48) == uint16(epoch) {
			s.change(c, epoch, -n)
		}
	}
}

// steps returns as many steps as hold n units.
func (s *sketch) steps(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return 1 + (n-1)/s.step
}

func (s *sketch) add(key keys.Key, epoch, n int64) {
	n = s.steps(n)
	for row := range s.words {
		s.change(s.cell(row, key), epoch, n)
	}
}

// change adds steps to the count of a cell in an epoch. What is refunded to an epoch that ends
// meanwhile stays spent.
func (s *sketch) change(c cell, epoch, n int64) {
	for {
		old := c.word.Load()
		word := s.rolled(old, epoch)
		if uint16(old>>48) == uint16(epoch)+1 {
			n = max(n, 0)
		}
		count := s.count(word, c.shift)
		if count == s.most {
			n = 0 // how much more there was is not known, so nothing of it can be refunded
		}
		next := uint64(min(max(count+min(n, s.most), 0), s.most))
		word = word&^(uint64(s.most)<<c.shift) | next<<c.shift
		if c.word.CompareAndSwap(old, word) {
			return
		}
	}
}

func (s *sketch) count(word, shift uint64) int64 { return int64(word>>shift) & s.most }

// rolled is a word as it stands in an epoch.
func (s *sketch) rolled(word uint64, epoch int64) uint64 {
	const current, before = 1<<countBits - 1, countBits
	switch uint16(epoch) - uint16(word>>48) {
	case 0, 0xffff: // or a request that read its clock before another did
		return word
	case 1:
		return uint64(uint16(epoch))<<48 | word&current<<before
	}
	return uint64(uint16(epoch)) << 48
}

// Fork returns a sketch of its own that counts one key as this one does, under the name of another
// if need be. It is nil for nil.
func (s *sketch) Fork(key, as keys.Key) *sketch {
	if s == nil {
		return nil
	}
	f := &sketch{window: s.window, cells: s.cells, bits: s.bits, most: s.most, step: s.step, number: s.number, born: s.born}
	f.last.Store(s.last.Load())
	f.used.Store(s.used.Load())
	for row := range s.words {
		f.words[row] = make([]atomic.Uint64, 1)
		from, to := s.cell(row, key), f.cell(row, as)
		word := from.word.Load()
		counts := uint64(s.count(word, from.shift)) | uint64(s.count(word, from.shift+countBits))<<countBits
		to.word.Store(word>>48<<48 | counts<<to.shift)
	}
	f.before.Store(s.before.Load().Fork(key, as))
	return f
}

// Expire lets go what counts no more at now: the sketch that this one took the place of, and where
// all is set this one. It reports whether this one is freed: a request that comes afterwards
// finds that it has to have another.
func (s *sketch) Expire(now int64, all bool) bool {
	epoch, last := now/int64(s.window), s.last.Load()
	if epoch >= s.born+2 {
		s.before.Store(nil)
	}
	return all && last != retired && epoch >= last+2 && s.last.CompareAndSwap(last, retired)
}

// Bytes is the memory it takes, with the sketches before it.
func (s *sketch) Bytes() (sum int64) {
	for ; s != nil; s = s.before.Load() {
		sum += int64(rows) * s.Width() * 8
	}
	return sum
}
