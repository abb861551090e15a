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
	maxCount  = 1<<countBits - 1
)

// A sketch counts the keys that find no place in a full table: a count-min sketch whose cells are two-counter windows, whatever
// the algorithm. A cell holds at least what each of its keys spent, so no key gets more than its limit; keys that share all their cells
// with busy ones get less. With up to half a busy key per cell of a row that is rare; beyond, newcomers
// are refused more and more.
//
// Source: Cormode and Muthukrishnan, An Improved Data Stream Summary: The Count-Min Sketch and its Applications, 2005.
//
// A cell packs the low 16 bits of its epoch, the count before it and the count in it, 24 bits each. Counts of 2^24 and more in a
// window are not told apart: such a limit is taken for 2^24 - 1 here.
type sketch struct {
	cells [rows][]atomic.Uint64
	mask  uint64
}

// rule is what a sketch needs of an algorithm.
type rule interface {
	Rule() (limit int64, window time.Duration)
}

func newSketch(maxKeys int64) *sketch {
	width := uint64(max(minWidth, 8*min(maxKeys, 1<<27)))
	width = 1 << bits.Len64(width-1)
	s := &sketch{mask: width - 1}
	for r := range s.cells {
		s.cells[r] = make([]atomic.Uint64, width)
	}
	return s
}

func (s *sketch) cell(row int, key Key) *atomic.Uint64 {
	return &s.cells[row][(key[0]+uint64(row)*(key[1]|1))&s.mask]
}

// take is called under the lock of the key's shard: cells are shared by keys of all shards, and what others add can only make
// the answer more careful.
func (s *sketch) take(r rule, key Key, now, n int64) algorithms.Decision {
	limit, window := r.Rule()
	alg := algorithms.SlidingWindow{Limit: min(limit, maxCount), Window: window, Buckets: 1}
	var state algorithms.WindowState
	alg.Roll(&state, now)
	l := alg.Ledger(&state)
	l.Cur.Own, l.Prev.Own = maxCount, maxCount
	for row := range s.cells {
		cur, prev := rolled(s.cell(row, key).Load(), l.Epoch)
		l.Cur.Own, l.Prev.Own = min(l.Cur.Own, cur), min(l.Prev.Own, prev)
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
	for row := range s.cells {
		if c := s.cell(row, key); uint16(c.Load()>>48) == uint16(epoch) {
			add(c, epoch, -n)
		}
	}
}

func (s *sketch) add(key Key, epoch, n int64) {
	for row := range s.cells {
		add(s.cell(row, key), epoch, n)
	}
}

// add changes the count of a cell in an epoch. What is given back to an epoch that ends meanwhile stays spent.
func add(c *atomic.Uint64, epoch, n int64) {
	for {
		old := c.Load()
		cur, prev := rolled(old, epoch)
		at := uint16(epoch)
		if uint16(old>>48) == at+1 {
			at++
			n = max(n, 0)
		}
		cur = min(max(cur+n, 0), maxCount)
		if c.CompareAndSwap(old, uint64(at)<<48|uint64(prev)<<countBits|uint64(cur)) {
			return
		}
	}
}

// rolled reads a cell as it stands in an epoch.
func rolled(c uint64, epoch int64) (cur, prev int64) {
	cur, prev = int64(c&maxCount), int64(c>>countBits&maxCount)
	switch uint16(epoch) - uint16(c>>48) {
	case 0, 0xffff: // or a request that read its clock before another did
		return cur, prev
	case 1:
		return 0, cur
	}
	return 0, 0
}

// bytes is the memory it takes.
func (s *sketch) bytes() int64 { return int64(rows) * int64(s.mask+1) * 8 }
