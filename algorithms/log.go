package algorithms

// A LogState is what a sliding log remembers of one key. The zero value is a key never seen. Its owner locks.
type LogState struct {
	ledger Ledger
	// hits[head:] are the instants at which this node admitted something in the window that ends at last, oldest first. units is how much,
	// where that was not 1, and own the sum.
	hits  []int64
	units map[int64]int64
	head  int
	own   int64
	last  int64
	// elsewhere is what others spent; nil while nothing is known.
	elsewhere *sixteenths
}

// sixteenths are the units that were spent elsewhere, by slices of a sixteenth of the window: n[age] in the slice age before newest. A slice can be
// negative: what was given back lowers the slices before it, the newest first.
type sixteenths struct {
	newest int64
	n      [slicesHeld]int64
}

// slicesHeld is 16 and the one that is partly in the window.
const slicesHeld = 17

// advance drops what has left the window at now, and returns by how much now is behind the state where it is late. After a step of the clock what was
// admitted in the future counts as admitted now.
func (s *LogState) advance(now, window int64) (late int64) {
	if now < s.last {
		if behind := since(s.last, now); behind <= uint64(lateness(window)) {
			return int64(behind)
		}
		s.pullBack(now)
	}
	s.last = now
	for s.head < len(s.hits) && since(now, s.hits[s.head]) >= uint64(window) {
		n := s.unitsOf(s.head)
		s.own -= n
		s.setUnits(s.head, 1)
		s.head++
	}
	s.shrink()
	if s.elsewhere != nil {
		slice, _ := floorDivMod(now, sliceOf(window))
		if s.elsewhere.advance(slice); s.elsewhere.n == [slicesHeld]int64{} {
			s.elsewhere = nil
		}
	}
	return 0
}

// unitsOf is how much was admitted at the instant of hits[i].
func (s *LogState) unitsOf(i int) int64 {
	if n, ok := s.units[s.hits[i]]; ok {
		return n
	}
	return 1
}

func (s *LogState) setUnits(i int, n int64) {
	switch {
	case n != 1 && s.units == nil:
		s.units = map[int64]int64{s.hits[i]: n}
	case n != 1:
		s.units[s.hits[i]] = n
	case s.units != nil:
		if delete(s.units, s.hits[i]); len(s.units) == 0 {
			s.units = nil
		}
	}
}

// add logs n units at the newest instant.
func (s *LogState) add(n int64) {
	s.own = addSat(s.own, n)
	s.ledger.Cur.Own = addSat(s.ledger.Cur.Own, n)
	s.push(s.last, n)
}

// push logs n units at an instant that is not before any other. Before it lets the log grow it uses the room that the dropped ones left, where that is
// worth the copying. It grows by half, and so has room for less than twice what is in it.
func (s *LogState) push(at, n int64) {
	if i := len(s.hits) - 1; i >= s.head && s.hits[i] == at {
		s.setUnits(i, addSat(s.unitsOf(i), n))
		return
	}
	if len(s.hits) == cap(s.hits) {
		left := s.hits[s.head:]
		if s.head >= (len(s.hits)+7)/8 {
			s.hits = s.hits[:copy(s.hits, left)]
		} else {
			s.hits = append(make([]int64, 0, len(left)+len(left)/2+1), left...)
		}
		s.head = 0
	}
	s.hits = append(s.hits, at)
	s.setUnits(len(s.hits)-1, n)
}

// dropOldest drops n units, the oldest first.
func (s *LogState) dropOldest(n int64) {
	for n > 0 && s.head < len(s.hits) {
		oldest := s.unitsOf(s.head)
		part := min(n, oldest)
		s.own -= part
		n -= part
		if part < oldest {
			s.setUnits(s.head, oldest-part)
			return
		}
		s.setUnits(s.head, 1)
		s.head++
	}
}

// remove takes n units from what was logged at the instant taken. Where nothing was, the request was late and stands just
// after it, or the clock has stepped back and it stands before. What has left the window by then is not taken from what came after it.
func (s *LogState) remove(taken, n, window int64) {
	if taken < s.last && since(s.last, taken) >= uint64(window) {
		return
	}
	i := len(s.hits) - 1
	for i > s.head && s.hits[i-1] >= taken {
		i--
	}
	if i > s.head && s.hits[i] > taken && since(s.hits[i], taken) > uint64(lateness(window)) {
		i--
	}
	for ; n > 0 && i >= s.head; i-- {
		there := s.unitsOf(i)
		part := min(n, there)
		s.own -= part
		n -= part
		if part < there {
			s.setUnits(i, there-part)
			return
		}
		s.setUnits(i, 1)
		s.hits = s.hits[:i+copy(s.hits[i:], s.hits[i+1:])]
	}
}

// pullBack takes all that lies after now for admitted now.
func (s *LogState) pullBack(now int64) {
	i, n := len(s.hits), int64(0)
	for ; i > s.head && s.hits[i-1] >= now; i-- {
		n = addSat(n, s.unitsOf(i-1))
		s.setUnits(i-1, 1)
	}
	if s.hits = s.hits[:i]; n > 0 {
		s.push(now, n)
	}
}

// counts reports that something is in the window at now, which is not before last.
func (s *LogState) counts(now, window int64) bool {
	if i := len(s.hits) - 1; i >= s.head && since(now, s.hits[i]) < uint64(window) {
		return true
	}
	if s.elsewhere == nil {
		return false
	}
	c := LogState{last: now, elsewhere: s.elsewhere}
	others := c.others(window)
	return others.total() > 0
}

// shrink gives memory back when half of it is empty: a log has room for less than twice what is in it, beyond the first few.
func (s *LogState) shrink() {
	const small = 16
	if left := len(s.hits) - s.head; cap(s.hits) > small && left < cap(s.hits)/2 {
		s.hits = append(make([]int64, 0, max(small, left+left/4)), s.hits[s.head:]...)
		s.head = 0
	}
}

func (s *LogState) shift(by, window int64) {
	s.last = addSat(s.last, by)
	units := s.units
	hits := s.hits[s.head:]
	s.hits, s.units, s.head = make([]int64, 0, len(hits)), nil, 0
	for _, at := range hits {
		n, ok := units[at]
		if !ok {
			n = 1
		}
		s.push(addSat(at, by), n)
	}
	if s.elsewhere != nil {
		s.elsewhere.newest = addSat(s.elsewhere.newest, nearest(by, sliceOf(window)))
	}
}

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

// advance makes slice the newest. Slices that are newer, after a step of the clock, are put into it.
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

// A fade is how the units of others leave the window: left[age] are those that count while the slices up to age are in it.
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

// until is the wait until no more than target (>= 0) units count.
func (s *LogState) until(f fade, window, target int64) (wait int64) {
	own := s.own
	for i := s.head; addSat(own, f.total()) > target; {
		hitLeaves := int64(-1)
		if i < len(s.hits) {
			hitLeaves = window - int64(since(s.last, s.hits[i]))
		}
		if f.oldest >= 0 && (hitLeaves < 0 || f.after(f.oldest) < hitLeaves) {
			wait = f.after(f.oldest)
			f.oldest--
			continue
		}
		if hitLeaves < 0 {
			break
		}
		wait = hitLeaves
		own -= s.unitsOf(i)
		i++
	}
	return wait
}

// empties is the wait until nothing counts.
func (s *LogState) empties(f fade, window int64) (wait int64) {
	if s.head < len(s.hits) {
		newest := s.hits[len(s.hits)-1]
		wait = max(0, window-int64(since(s.last, newest)))
	}
	for age := 0; age <= f.oldest; age++ {
		if f.left[age] > 0 {
			return max(wait, f.after(age))
		}
	}
	return wait
}
