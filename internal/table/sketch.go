package table

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

const (
	rows      = 4
	minWidth  = 262144
	countBits = 24
)

// A sketch counts the keys that find no place in a full table: a count-min sketch whose cells are two-counter windows, whatever
// the algorithm. A cell holds at least what each of its keys spent, so no key gets more than its limit; keys that share all their cells
// with busy ones get less. The more cells a row has for each busy key, the rarer that is.
//
// Source: Cormode and Muthukrishnan, An Improved Data Stream Summary: The Count-Min Sketch and its Applications, 2005.
//
// A word packs the low 16 bits of its epoch, then the counts before it and in it of as many cells as the limit leaves room for: a count
// has 24 bits, or a half, a third or a sixth of that for limits that fit. A count that has reached its end stays there for its
// window, and a limit beyond it, 2^24 - 2, is taken for that.
type sketch struct {
	words [rows][]atomic.Uint64
	cells uint64 // in a word: 1, 2, 3 or 6
	bits  uint64 // of a count
	most  int64  // a count
}

// rule is what a sketch needs of an algorithm.
type rule interface {
	Rule() (limit int64, window time.Duration)
}

// widthFor is how many words a row has for a table of maxKeys.
func widthFor(maxKeys int64) int64 { return max(minWidth, 8*min(maxKeys, 1<<27)) }

// newSketch makes a sketch with width words in a row, for a limit.
func newSketch(width, limit int64) *sketch {
	s := &sketch{cells: cellsFor(limit)}
	s.bits = countBits / s.cells
	s.most = 1<<s.bits - 1
	for r := range s.words {
		s.words[r] = make([]atomic.Uint64, width)
	}
	return s
}

// cellsFor is how many cells fit into a word when counts must tell a limit from one more.
func cellsFor(limit int64) uint64 {
	for _, cells := range []uint64{6, 3, 2} {
		if limit < 1<<(countBits/cells)-1 {
			return cells
		}
	}
	return 1
}

// holds says that the counts can tell a limit from one more, as far as any can.
func (s *sketch) holds(limit int64) bool { return s.cells <= cellsFor(limit) }

// A cell is a place in a word.
type cell struct {
	word  *atomic.Uint64
	shift uint64
}

func (s *sketch) cell(row int, key Key) cell {
	place, _ := bits.Mul64(key[0]+uint64(row)*(key[1]|1), uint64(len(s.words[row]))*s.cells)
	return cell{&s.words[row][place/s.cells], place % s.cells * s.bits}
}

// take is called under the lock of the key's shard: cells are shared by keys of all shards, and what others add can only make
// the answer more careful.
func (s *sketch) take(r rule, key Key, now, n int64) algorithms.Decision {
	limit, window := r.Rule()
	alg := algorithms.SlidingWindow{Limit: min(limit, s.most-1), Window: window, Buckets: 1}
	var state algorithms.WindowState
	alg.Roll(&state, now)
	l := alg.Ledger(&state)
	l.Cur.Own, l.Prev.Own = s.most, s.most
	for row := range s.words {
		c := s.cell(row, key)
		word := s.rolled(c.word.Load(), l.Epoch)
		l.Cur.Own, l.Prev.Own = min(l.Cur.Own, s.count(word, c.shift)), min(l.Prev.Own, s.count(word, c.shift+countBits))
	}
	d := alg.Take(&state, now, n, 0)
	d.Limit = limit
	if d.Allowed {
		s.add(key, l.Epoch, n)
	}
	return d
}

// give takes n units back that were taken at an instant, as far as the cells still stand in that epoch.
func (s *sketch) give(r rule, key Key, taken, n int64) {
	_, window := r.Rule()
	epoch := taken / int64(window)
	for row := range s.words {
		if c := s.cell(row, key); uint16(c.word.Load()>>48) == uint16(epoch) {
			s.change(c, epoch, -n)
		}
	}
}

func (s *sketch) add(key Key, epoch, n int64) {
	for row := range s.words {
		s.change(s.cell(row, key), epoch, n)
	}
}

// change adds to the count of a cell in an epoch. What is given back to an epoch that ends meanwhile stays spent.
func (s *sketch) change(c cell, epoch, n int64) {
	for {
		old := c.word.Load()
		word := s.rolled(old, epoch)
		if uint16(old>>48) == uint16(epoch)+1 {
			n = max(n, 0)
		}
		count := s.count(word, c.shift)
		if count == s.most {
			n = 0 // how much more there was is not known, so nothing of it can be given back
		}
		next := uint64(min(max(count+n, 0), s.most))
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

// bytes is the memory it takes.
func (s *sketch) bytes() int64 { return int64(rows) * int64(len(s.words[0])) * 8 }
