package algorithms

// sixteenths are the units that were spent elsewhere, by slices of a sixteenth of the window:
// n[age] in the slice age before newest. A slice can be negative: what was given back lowers the
// slices before it, the newest first.
type sixteenths struct {
	newest int64
	n      [slicesHeld]int64
}

// slicesHeld is 16 and the one that is partly in the window.
const slicesHeld = 17

// addElsewhere adds n units to the slice of an instant that is ago before the newest.
func (s *LogState) addElsewhere(ago, n, window int64) {
	if n == 0 {
		return
	}
	newest, into := floorDivMod(s.last, sliceOf(window))
	if s.elsewhere == nil {
		s.elsewhere = &sixteenths{newest: newest}
	}
	s.elsewhere.advance(newest)
	age := int64(0)
	if ago > into {
		age = min((ago-into-1)/sliceOf(window)+1, slicesHeld-1)
	}
	s.elsewhere.n[age] = addSat(s.elsewhere.n[age], n)
}

// advance makes slice the newest. Slices that are newer, after a step of the clock, are put into
// it.
func (e *sixteenths) advance(slice int64) {
	ahead := slice - e.newest
	switch {
	case ahead == 0:
		return
	case ahead >= slicesHeld:
		e.n = [slicesHeld]int64{}
	case ahead > 0:
		copy(e.n[ahead:], e.n[:])
		clear(e.n[:ahead])
	case ahead <= -slicesHeld:
		e.n = [slicesHeld]int64{e.sum()}
	default:
		var n [slicesHeld]int64
		n[0] = sumOf(e.n[:1-ahead])
		copy(n[1:], e.n[1-ahead:])
		e.n = n
	}
	e.newest = slice
}

func (e *sixteenths) sum() int64 { return sumOf(e.n[:]) }

func sumOf(ns []int64) (sum int64) {
	for _, n := range ns {
		sum = addSat(sum, n)
	}
	return sum
}

// sliceOf is the length of a slice.
func sliceOf(window int64) int64 { return (window + 15) / 16 }

// A fade is how the units of others leave the window: left[age] are those that count while the
// slices up to age are in it.
type fade struct {
	left [slicesHeld]int64
	// oldest is the age of the oldest slice in the window, -1 where there is none.
	oldest int
	// leaves is the time until the slice of age 0 leaves.
	leaves, slice int64
}

// others works out how the units of others leave the window that ends at last.
func (s *LogState) others(window int64) fade {
	f := fade{oldest: -1}
	if s.elsewhere == nil {
		return f
	}
	f.slice = sliceOf(window)
	newest, into := floorDivMod(s.last, f.slice)
	e := *s.elsewhere
	e.advance(newest)
	f.leaves = f.slice - into + window
	var sum, left int64
	for age, n := range e.n {
		if f.after(age) <= 0 {
			break
		}
		sum = addSat(sum, n)
		left = max(left, sum)
		f.left[age], f.oldest = left, age
	}
	return f
}

// after is the time until the slice of an age leaves.
func (f *fade) after(age int) int64 { return f.leaves - int64(age)*f.slice }

func (f *fade) total() int64 {
	if f.oldest < 0 {
		return 0
	}
	return f.left[f.oldest]
}
