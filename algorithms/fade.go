package algorithms

import (
	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// addRemote adds n units to the sixteenth of an instant that is ago before the newest.
func (s *LogState) addRemote(ago, n, window int64) {
	if n == 0 {
		return
	}
	newest, into := floorDivMod(s.last, SixteenthOf(window))
	if s.remote == nil {
		s.remote = &Sixteenths{Newest: newest}
	}
	s.remote.Advance(newest)
	age := int64(0)
	if ago > into {
		age = min((ago-into-1)/SixteenthOf(window)+1, heldSixteenths-1)
	}
	s.remote.Add(age, n)
}

// A fade is how the units of others leave the window: left[age] are those that count while the
// sixteenths up to age are in it.
type fade struct {
	left [heldSixteenths]int64
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
	f.sixteenth = SixteenthOf(window)
	newest, into := floorDivMod(s.last, f.sixteenth)
	e := *s.remote
	e.Advance(newest)
	f.leaves = f.sixteenth - into + window
	var sum, left int64
	for age, n := range e.N {
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
