package algorithms

import "github.com/caddy-tide/ratelimit/internal/saturate"

// sixteenths are the units that were spent on other nodes, by sixteenths of the window: n[age] in
// the sixteenth age before newest. A sixteenth can be negative: a refund lowers the sixteenths
// before it, the newest first.
type sixteenths struct {
	newest int64
	n      [sixteenthsHeld]int64
}

// sixteenthsHeld is 16 and the one that is partly in the window.
const sixteenthsHeld = 17

// addRemote adds n units to the sixteenth of an instant that is ago before the newest.
func (s *LogState) addRemote(ago, n, window int64) {
	if n == 0 {
		return
	}
	newest, into := floorDivMod(s.last, sixteenthOf(window))
	if s.remote == nil {
		s.remote = &sixteenths{newest: newest}
	}
	s.remote.advance(newest)
	age := int64(0)
	if ago > into {
		age = min((ago-into-1)/sixteenthOf(window)+1, sixteenthsHeld-1)
	}
	s.remote.n[age] = saturate.Add(s.remote.n[age], n)
}

// advance makes sixteenth the newest. Sixteenths that are newer, after a step of the clock, are put
// into it.
func (e *sixteenths) advance(sixteenth int64) {
	ahead := sixteenth - e.newest
	switch {
	case ahead == 0:
		return
	case ahead >= sixteenthsHeld:
		e.n = [sixteenthsHeld]int64{}
	case ahead > 0:
		copy(e.n[ahead:], e.n[:])
		clear(e.n[:ahead])
	case ahead <= -sixteenthsHeld:
		e.n = [sixteenthsHeld]int64{e.sum()}
	default:
		var n [sixteenthsHeld]int64
		n[0] = sumOf(e.n[:1-ahead])
		copy(n[1:], e.n[1-ahead:])
		e.n = n
	}
	e.newest = sixteenth
}

func (e *sixteenths) sum() int64 { return sumOf(e.n[:]) }

func sumOf(ns []int64) (sum int64) {
	for _, n := range ns {
		sum = saturate.Add(sum, n)
	}
	return sum
}

// sixteenthOf is the length of a sixteenth.
func sixteenthOf(window int64) int64 { return (window + 15) / 16 }

// A fade is how the units of others leave the window: left[age] are those that count while the
// sixteenths up to age are in it.
type fade struct {
	left [sixteenthsHeld]int64
	// oldest is the age of the oldest sixteenth in the window, -1 where there is none.
	oldest int
	// leaves is the time until the sixteenth of age 0 leaves.
	leaves, sixteenth int64
}

// others works out how the units of others leave the window that ends at last.
func (s *LogState) others(window int64) fade {
	f := fade{oldest: -1}
	if s.remote == nil {
		return f
	}
	f.sixteenth = sixteenthOf(window)
	newest, into := floorDivMod(s.last, f.sixteenth)
	e := *s.remote
	e.advance(newest)
	f.leaves = f.sixteenth - into + window
	var sum, left int64
	for age, n := range e.n {
		if f.after(age) <= 0 {
			break
		}
		sum = saturate.Add(sum, n)
		left = max(left, sum)
		f.left[age], f.oldest = left, age
	}
	return f
}

// after is the time until the sixteenth of an age leaves.
func (f *fade) after(age int) int64 { return f.leaves - int64(age)*f.sixteenth }

func (f *fade) total() int64 {
	if f.oldest < 0 {
		return 0
	}
	return f.left[f.oldest]
}
