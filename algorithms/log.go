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
	ledger Ledger
	// hits[head:] are the instants at which this node admitted something in the window that ends at
	// last, oldest first. units is how much, where that was not 1, and own the sum.
	hits  []int64
	units map[int64]int64
	head  int
	own   int64
	last  int64
	// remote is what others spent; nil while nothing is known.
	remote *Sixteenths
}

// log is the machine of SlidingLog. The ledger doesn't decide; it is what the sync sends and
// merges.
type log struct{}

// Clone returns a copy that shares nothing with s.
func (*log) Clone(s *LogState) LogState {
	c := *s
	c.ledger, c.units = s.ledger.Clone(), maps.Clone(s.units)
	if s.hits != nil {
		// a log that has no more room is moved, one that has is not
		c.hits = append(make([]int64, 0, cap(s.hits)), s.hits...)
	}
	if s.remote != nil {
		remote := *s.remote
		c.remote = &remote
	}
	return c
}

// Take asks for n units.
func (*log) Take(s *LogState, l Limit, now, n, pending int64) (r Result) {
	n, pending = max(n, 0), max(pending, 0)
	s.advance(now, l.Window)
	s.advanceLedger(l, now)
	if l.N == 0 {
		r, _ = l.closed(n, 0)
		return r
	}
	r = decide(l.Size, s.used(l.Window), n, pending)
	if r.Allowed && n > 0 {
		s.add(n)
	}
	return r
}

// Waits works out the waits that are wanted.
func (*log) Waits(s *LogState, l Limit, now, n, pending int64, want Want) (w Waits) {
	n, pending = max(n, 0), max(pending, 0)
	late := s.advance(now, l.Window)
	s.advanceLedger(l, now)
	if l.N == 0 {
		_, w = l.closed(n, want)
		return w
	}
	others := s.others(l.Window)
	used := saturate.Add(s.own, others.total())
	if want&WantRetry != 0 {
		switch {
		case n > l.Size:
			w.Retry = time.Duration(l.Window)
		case n > l.Size-used:
			w.Retry = wait(late, s.until(others, l.Window, l.Size-n))
		case n > l.Size-used-pending:
			ns := l.Window // until what is pending leaves, were it spent now
			if target := l.Size - n - pending; target >= 0 {
				ns = min(ns, s.until(others, ns, target))
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
			w.Next = wait(late, s.until(others, l.Window, next))
		}
	}
	if want&WantReset != 0 {
		w.Reset = wait(late, s.empties(others, l.Window))
	}
	return w
}

// Refund removes n units from what was logged at the instant taken.
func (*log) Refund(s *LogState, l Limit, taken, n int64) {
	n = max(n, 0)
	epoch, _ := floorDivMod(taken, l.Window)
	s.ledger.Refund(epoch, n)
	s.remove(taken, n, l.Window)
}

// Penalize logs n units unasked. Beyond Size the oldest make room, as the newest are those that
// keep a client waiting: as many as come, since a higher limit may have admitted more.
func (*log) Penalize(s *LogState, l Limit, now, n int64) {
	s.advance(now, l.Window)
	s.advanceLedger(l, now)
	if n = min(n, l.Size); n <= 0 {
		return
	}
	s.dropOldest(min(n, s.own-(l.Size-n)))
	s.add(n)
}

// Ledger returns the totals for the sync. They don't decide.
func (*log) Ledger(s *LogState) *Ledger { return &s.ledger }

// Advance brings the ledger to the aligned window of now.
func (*log) Advance(s *LogState, l Limit, now int64) { s.advanceLedger(l, now) }

// Merge logs what the others are newly known to have spent: in the current epoch as spent now, in
// the former one as spent at its end, or before where the store knows that nothing was spent since.
// None is earlier than it was. An epoch that is not reported keeps what is known of it.
func (*log) Merge(s *LogState, l Limit, now int64, reports []Report) {
	s.advance(now, l.Window)
	s.advanceLedger(l, now)
	led := &s.ledger
	_, into := floorDivMod(s.last, l.Window)
	for _, r := range reports {
		count, ok := led.At(r.Epoch)
		if !ok {
			continue
		}
		// Nothing was spent before its epoch, whatever a store's clock says that has stepped.
		remote, ago := max(0, r.Remote), min(max(0, r.Ago), into+(led.Epoch-r.Epoch)*l.Window)
		if remote < count.Remote {
			ago = 0 // of a refund the instant is not known, and it lowers only what was before it
		}
		if r.Epoch < led.Epoch {
			ago = max(ago, into+1)
		}
		if ago < l.Window { // else all of it has left the window
			s.addRemote(ago, saturate.Add(remote, -count.Remote), l.Window)
		}
		count.Remote = remote
		led.Put(r.Epoch, count)
		led.Synced = true
	}
}

// Shift moves the instants, and the totals by the nearest number of whole windows.
func (*log) Shift(s *LogState, l Limit, now int64, by time.Duration) {
	s.shift(int64(by), l.Window)
	epoch, _ := floorDivMod(now, l.Window)
	s.ledger.Shift(nearest(int64(by), l.Window), epoch)
}

// Level returns 0.
func (*log) Level(*LogState, Limit, int64) (level float64, rate int64) { return 0, 0 }

// Idle reports whether nothing logged is left in the window and its epochs are over.
func (*log) Idle(s *LogState, l Limit, now int64) bool {
	if now < s.last && (len(s.hits) > 0 || s.remote != nil) {
		return false
	}
	if l.N > 0 && s.counts(now, l.Window) {
		return false
	}
	epoch, _ := floorDivMod(now, l.Window)
	own, _ := s.ledger.Holds(epoch, 1)
	return !own
}

// advanceLedger brings the ledger to the epoch of now.
func (s *LogState) advanceLedger(l Limit, now int64) {
	if _, ok := s.ledger.Within(now, l.Window); ok {
		return
	}
	epoch, _ := floorDivMod(now, l.Window)
	s.ledger.Advance(epoch, 1)
}

// used is how many units are in the window that ends at last.
func (s *LogState) used(window int64) int64 {
	if s.remote == nil {
		return s.own
	}
	others := s.others(window)
	return saturate.Add(s.own, others.total())
}

// advance drops what has left the window at now, and returns by how much now is behind the state
// where it is late. After a step of the clock what was admitted in the future counts as admitted
// now.
func (s *LogState) advance(now, window int64) (late int64) {
	if now < s.last {
		if behind := since(s.last, now); behind <= uint64(lateness(window)) {
			return int64(behind)
		}
		s.pullBack(now)
	}
	s.last = now
	for s.head < len(s.hits) && since(now, s.hits[s.head]) >= uint64(window) {
		s.takeOut(s.head, math.MaxInt64)
	}
	s.shrink()
	if s.remote != nil {
		sixteenth, _ := floorDivMod(now, SixteenthOf(window))
		if s.remote.Advance(sixteenth); s.remote.IsZero() {
			s.remote = nil
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
	s.own = saturate.Add(s.own, n)
	s.ledger.Cur.Own = saturate.Add(s.ledger.Cur.Own, n)
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
func (s *LogState) dropOldest(n int64) {
	for n > 0 && s.head < len(s.hits) {
		n -= s.takeOut(s.head, n)
	}
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
// was late and stands just after it, or the clock has stepped back and it stands before. What has
// left the window by then is not taken from what came after it.
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
		n -= s.takeOut(i, n)
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

// counts reports that something is in the window at now, which is not before last.
func (s *LogState) counts(now, window int64) bool {
	if i := len(s.hits) - 1; i >= s.head && since(now, s.hits[i]) < uint64(window) {
		return true
	}
	if s.remote == nil {
		return false
	}
	c := LogState{last: now, remote: s.remote}
	others := c.others(window)
	return others.total() > 0
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

func (s *LogState) shift(by, window int64) {
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
	if s.remote != nil {
		s.remote.Newest = saturate.Add(s.remote.Newest, nearest(by, SixteenthOf(window)))
	}
}

// until is the wait until no more than target (>= 0) units count.
func (s *LogState) until(f fade, window, target int64) (wait int64) {
	own := s.own
	for i := s.head; saturate.Add(own, f.total()) > target; {
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
