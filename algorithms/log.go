package algorithms

import (
	"maps"
	"math"
	"time"

	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// A LogState is what a sliding log remembers of one key. The zero value is a key never seen. Its
// owner locks.
type LogState struct {
	// ledger has what was spent by sixteenths of the window: by that what others have spent counts.
	// Of this node it has all that hits have; a local table's has no epoch before the last two.
	ledger Ledger
	// hits[head:] are the instants at which this node admitted something in the window that ends at
	// last, oldest first. units is how much, where that was not 1, and own the sum.
	hits  []int64
	units map[int64]int64
	head  int
	own   int64
	last  int64
	// bySixteenths is set while something of this node counts that was not decided here, but
	// granted by a store or saved by an earlier process. Then all that it has spent counts by
	// sixteenths, and there are no hits.
	bySixteenths bool
}

// sixteenths is how many epochs before the current one a log goes by: the oldest has not left the
// window before the current one ends.
const sixteenths = 16

// sixteenthOf is the length of a log's epoch. It is rounded up to what stores count in, so that
// nothing ends to count too early.
func sixteenthOf(window int64) int64 {
	part := (window + sixteenths - 1) / sixteenths
	if us := int64(time.Microsecond); part > us {
		part = (part + us - 1) / us * us
	}
	return part
}

// log is the machine of SlidingLog.
type log struct{}

// Clone returns a copy that shares nothing with s.
func (*log) Clone(s *LogState) LogState {
	c := *s
	c.ledger, c.units = s.ledger.Clone(), maps.Clone(s.units)
	if s.hits != nil {
		// a log that has no more room is moved, one that has is not
		c.hits = append(make([]int64, 0, cap(s.hits)), s.hits...)
	}
	return c
}

// Take asks for n units.
func (*log) Take(s *LogState, l Limit, now, n, unseen int64) (r Result) {
	n, unseen = max(n, 0), max(unseen, 0)
	s.advance(now, l.Window)
	if l.N == 0 {
		r, _ = l.closed(n, 0)
		return r
	}
	r = decide(l.Size, s.used(), n, unseen)
	if r.Allowed && n > 0 {
		s.add(n)
	}
	return r
}

// Waits works out the waits that are wanted.
func (*log) Waits(s *LogState, l Limit, now, n, unseen int64, want Want) (w Waits) {
	n, unseen = max(n, 0), max(unseen, 0)
	late := s.advance(now, l.Window)
	if l.N == 0 {
		_, w = l.closed(n, want)
		return w
	}
	f := s.fade(l.Window)
	used := saturate.Add(s.own, f.total)
	if want&WantRetry != 0 {
		switch {
		case n > l.Size:
			w.Retry = time.Duration(l.Window)
		case n > l.Size-used:
			w.Retry = wait(late, s.until(f, l.Window, l.Size-n))
		case n > l.Size-used-unseen:
			ns := f.after(0) // until what is unseen leaves, were it spent now
			if target := l.Size - n - unseen; target >= 0 {
				ns = min(ns, s.until(f, l.Window, target))
			}
			w.Retry = wait(late, ns)
		}
	}
	if used == 0 {
		return w
	}
	if want&WantNext != 0 {
		if next := min(used, l.Size) - 1; w.Retry > 0 && next == l.Size-n {
			w.Next = w.Retry // the unit that is waited for is the next one
		} else {
			w.Next = wait(late, s.until(f, l.Window, next))
		}
	}
	if want&WantReset != 0 {
		w.Reset = wait(late, s.empties(f, l.Window))
	}
	return w
}

// Refund removes n units from what was logged at the instant taken.
func (*log) Refund(s *LogState, l Limit, taken, n int64) {
	if n = max(n, 0); !s.bySixteenths {
		s.remove(taken, n, l.Window)
		return
	}
	epoch, _ := floorDivMod(taken, sixteenthOf(l.Window))
	s.ledger.Refund(epoch, n)
}

// Penalize logs n units unasked. Beyond Size the oldest make room, as the newest are those that
// keep a client waiting: as many as come, since a higher limit may have admitted more. The request
// was decided a while ago, which is no step of the clock.
func (*log) Penalize(s *LogState, l Limit, now, n int64) {
	s.advance(max(now, s.last), l.Window)
	if n = min(n, l.Size); n <= 0 {
		return
	}
	own := s.own
	if s.bySixteenths {
		own, _ = s.ledger.Sum(sixteenths)
	}
	s.dropOldest(min(n, own-(l.Size-n)), l.Window)
	s.add(n)
}

// Adopt counts n units by sixteenths, and all others of this node as well from then on.
func (*log) Adopt(s *LogState, l Limit, epoch, n int64) {
	s.hold(l.Window)
	c, ok := s.ledger.At(epoch)
	if !ok || n == 0 {
		return
	}
	c.Own = saturate.Add(c.Own, n)
	s.ledger.Put(epoch, c)
	s.bySixteenths = true
	s.hits, s.units, s.head, s.own = nil, nil, 0, 0
}

// Ledger returns the totals for the sync, and those by which others are counted.
func (*log) Ledger(s *LogState) *Ledger { return &s.ledger }

// Advance brings the totals to the sixteenth of now, and has them begin a window before.
func (*log) Advance(s *LogState, l Limit, now int64) {
	s.advance(now, l.Window)
	s.hold(l.Window)
}

// Spent returns what counts.
func (*log) Spent(s *LogState, l Limit, now int64) (own, remote int64) {
	s.advance(now, l.Window)
	if own, remote = s.ledger.Sum(sixteenths); !s.bySixteenths {
		own = s.own
	}
	return own, remote
}

// Merge sets what other nodes spent, sixteenth by sixteenth.
func (g *log) Merge(s *LogState, l Limit, now int64, reports []Report) {
	g.Advance(s, l, now)
	s.ledger.merge(reports)
}

// Shift moves the instants, and what counts by sixteenths by the nearest number of them.
func (*log) Shift(s *LogState, l Limit, now int64, by time.Duration) {
	s.hold(l.Window)
	s.shift(int64(by))
	part := sixteenthOf(l.Window)
	epoch, _ := floorDivMod(now, part)
	s.ledger.Shift(nearest(int64(by), part), epoch)
	s.recount(l.Window)
}

// Level returns 0.
func (*log) Level(*LogState, Limit, int64) (level float64, rate int64) { return 0, 0 }

// Idle reports whether nothing that was spent counts any more.
func (*log) Idle(s *LogState, l Limit, now int64) bool {
	i := len(s.hits) - 1
	if i >= s.head && (now < s.last || l.N > 0 && since(now, s.hits[i]) < uint64(l.Window)) {
		return false
	}
	if s.ledger.older == nil && s.ledger.Cur.Acked == 0 && s.ledger.Prev.Acked == 0 {
		return true // nothing is shared, and the hits are all there is
	}
	epoch, _ := floorDivMod(now, sixteenthOf(l.Window))
	own, remote := s.ledger.Holds(epoch, sixteenths)
	return !own && !remote
}

// used is how many units count at last.
func (s *LogState) used() int64 {
	used := s.own
	if s.ledger.older == nil {
		return used
	}
	own, remote := s.ledger.Sum(sixteenths)
	if s.bySixteenths {
		used = own
	}
	return saturate.Add(used, remote)
}

// advance drops what has left the window at now, brings the ledger to its sixteenth, and returns by
// how much now is behind the state where it is late. After a step of the clock what was admitted in
// the future counts as admitted now.
func (s *LogState) advance(now, window int64) (late int64) {
	stepped := false
	if now < s.last {
		if behind := since(s.last, now); behind <= uint64(lateness(window)) {
			return int64(behind)
		}
		s.pullBack(now)
		stepped = true
	}
	s.last = now
	for s.head < len(s.hits) && since(now, s.hits[s.head]) >= uint64(window) {
		s.takeOut(s.head, math.MaxInt64)
	}
	s.shrink()
	part := sixteenthOf(window)
	if _, ok := s.ledger.Within(now, part); ok && !stepped {
		return 0
	}
	epoch, _ := floorDivMod(now, part)
	if s.ledger.older == nil {
		s.ledger.Advance(epoch, 1)
	} else if s.ledger.Advance(epoch, sixteenths); s.bySixteenths {
		own, _ := s.ledger.Sum(sixteenths)
		s.bySixteenths = own > 0
	}
	if s.ledger.Epoch > epoch {
		s.ledger.Renumber(-1)
	}
	if stepped {
		s.recount(window)
	}
	return 0
}

// hold has the ledger begin a window before last.
func (s *LogState) hold(window int64) {
	if s.ledger.older == nil {
		s.ledger.hold(sixteenths)
		s.recount(window)
	}
}

// recount has the ledger count the hits.
func (s *LogState) recount(window int64) {
	if s.bySixteenths {
		return
	}
	part := sixteenthOf(window)
	for age := int64(0); ; age++ {
		c, ok := s.ledger.At(s.ledger.Epoch - age)
		if !ok {
			break
		}
		c.Own = 0
		s.ledger.Put(s.ledger.Epoch-age, c)
	}
	for i := s.head; i < len(s.hits); i++ {
		epoch, _ := floorDivMod(s.hits[i], part)
		if c, ok := s.ledger.At(epoch); ok {
			c.Own = saturate.Add(c.Own, s.unitsOf(i))
			s.ledger.Put(epoch, c)
		}
	}
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
	s.ledger.Cur.Own = saturate.Add(s.ledger.Cur.Own, n)
	if s.bySixteenths {
		return
	}
	s.own = saturate.Add(s.own, n)
	s.push(s.last, n)
}

// push logs n units at an instant that is not before any other. Before it lets the log grow it uses
// the room that the dropped ones left, where that is worth the copying. It grows by half, and so
// has room for less than twice what is in it.
func (s *LogState) push(at, n int64) {
	if i := len(s.hits) - 1; i >= s.head && s.hits[i] == at {
		s.setUnits(i, saturate.Add(s.unitsOf(i), n))
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
func (s *LogState) dropOldest(n, window int64) {
	for n > 0 && s.head < len(s.hits) {
		n -= s.giveBack(s.head, n, window)
	}
	for age := int64(sixteenths); n > 0 && age >= 0 && s.bySixteenths; age-- {
		if c, ok := s.ledger.At(s.ledger.Epoch - age); ok {
			less := min(n, c.Own)
			c.Own, n = c.Own-less, n-less
			s.ledger.Put(s.ledger.Epoch-age, c)
		}
	}
}

// giveBack is takeOut of what is to count no more.
func (s *LogState) giveBack(i int, n, window int64) int64 {
	epoch, _ := floorDivMod(s.hits[i], sixteenthOf(window))
	n = s.takeOut(i, n)
	if c, ok := s.ledger.At(epoch); ok {
		c.Own -= min(n, c.Own)
		s.ledger.Put(epoch, c)
	}
	return n
}

// takeOut takes up to n units out of hits[i], and returns how many there were.
func (s *LogState) takeOut(i int, n int64) int64 {
	there := s.unitsOf(i)
	n = min(n, there)
	s.own -= n
	if n < there {
		s.setUnits(i, there-n)
		return n
	}
	s.setUnits(i, 1)
	if i == s.head {
		s.head++
	} else {
		s.hits = s.hits[:i+copy(s.hits[i:], s.hits[i+1:])]
	}
	return n
}

// remove takes n units from what was logged at the instant taken. Where nothing was, the request
// was late and stands just after it, or the clock has stepped back and it stands before. Where less
// was than n, an earlier refund has taken what is missing in its place, which stands just after it.
// What has left the window by then is not taken from what came after it.
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
		n -= s.giveBack(i, n, window)
	}
	for n > 0 && s.head < len(s.hits) && since(s.hits[s.head], taken) <= uint64(lateness(window)) {
		n -= s.giveBack(s.head, n, window)
	}
}

// pullBack takes all that lies after now for admitted now.
func (s *LogState) pullBack(now int64) {
	i, n := len(s.hits), int64(0)
	for ; i > s.head && s.hits[i-1] >= now; i-- {
		n = saturate.Add(n, s.unitsOf(i-1))
		s.setUnits(i-1, 1)
	}
	if s.hits = s.hits[:i]; n > 0 {
		s.push(now, n)
	}
}

// shrink gives memory back when half of it is empty: a log has room for less than twice what is in
// it, beyond the first few.
func (s *LogState) shrink() {
	const small = 16
	if left := len(s.hits) - s.head; cap(s.hits) > small && left < cap(s.hits)/2 {
		s.hits = append(make([]int64, 0, max(small, left+left/4)), s.hits[s.head:]...)
		s.head = 0
	}
}

func (s *LogState) shift(by int64) {
	s.last = saturate.Add(s.last, by)
	units := s.units
	hits := s.hits[s.head:]
	s.hits, s.units, s.head = make([]int64, 0, len(hits)), nil, 0
	for _, at := range hits {
		n, ok := units[at]
		if !ok {
			n = 1
		}
		s.push(saturate.Add(at, by), n)
	}
}

// A fade is how what counts by sixteenths ends to count.
type fade struct {
	total int64
	// ends is the time until the sixteenth of age 0 ends to count.
	ends, part int64
}

// fade works out how it ends from last on.
func (s *LogState) fade(window int64) (f fade) {
	f.part = sixteenthOf(window)
	_, into := floorDivMod(s.last, f.part)
	f.ends = (sixteenths+1)*f.part - into
	if s.ledger.older != nil {
		for age := range int64(sixteenths + 1) {
			f.total = saturate.Add(f.total, s.counted(age))
		}
	}
	return f
}

// counted is what counts in the sixteenth of an age as that, and not by its instants.
func (s *LogState) counted(age int64) int64 {
	c, _ := s.ledger.At(s.ledger.Epoch - age)
	if s.bySixteenths {
		return c.Total()
	}
	return max(0, c.Remote)
}

// after is the time until the sixteenth of an age ends to count.
func (f *fade) after(age int64) int64 { return f.ends - age*f.part }

// until is the wait until no more than target (>= 0) units count.
func (s *LogState) until(f fade, window, target int64) (wait int64) {
	own, oldest := s.own, int64(sixteenths)
	for i := s.head; saturate.Add(own, f.total) > target; {
		hitLeaves := int64(math.MaxInt64)
		if i < len(s.hits) {
			hitLeaves = window - int64(since(s.last, s.hits[i]))
		}
		switch {
		case f.total > 0 && oldest >= 0 && f.after(oldest) <= hitLeaves:
			wait = f.after(oldest)
			f.total -= s.counted(oldest)
			oldest--
		case i < len(s.hits):
			wait = hitLeaves
			own -= s.unitsOf(i)
			i++
		default:
			return wait // more than can be added up
		}
	}
	return wait
}

// empties is the wait until nothing counts.
func (s *LogState) empties(f fade, window int64) (wait int64) {
	if s.head < len(s.hits) {
		newest := s.hits[len(s.hits)-1]
		wait = max(0, window-int64(since(s.last, newest)))
	}
	for age := int64(0); age <= sixteenths && f.total > 0; age++ {
		if s.counted(age) > 0 {
			return max(wait, f.after(age))
		}
	}
	return wait
}
