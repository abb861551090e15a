package algorithms

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// A WindowState is what a window remembers of one key: counts by epoch, nothing else.
type WindowState struct {
	ledger Ledger
}

// window is the machine of SlidingWindow and FixedWindow. What it decides by is the ledger.
type window struct{}

// Take asks for n units.
func (*window) Take(s *WindowState, l Limit, now, n, pending int64) (r Result) {
	n, pending = max(n, 0), max(pending, 0)
	c := epochsOf(l)
	into := c.advance(&s.ledger, now)
	if l.N == 0 {
		r, _ = l.closed(n, 0)
		return r
	}
	_, used := c.spent(&s.ledger, into)
	r = decide(l.Size, used, n, pending)
	if r.Allowed {
		s.ledger.Cur.Own += n
	}
	return r
}

// Waits works out the waits that are wanted.
func (*window) Waits(s *WindowState, l Limit, now, n, pending int64, want Want) (w Waits) {
	n, pending = max(n, 0), max(pending, 0)
	c := epochsOf(l)
	into := c.advance(&s.ledger, now)
	if l.N == 0 {
		_, w = l.closed(n, want)
		return w
	}
	full, used := c.spent(&s.ledger, into)
	if want&WantRetry != 0 {
		w.Retry = c.retry(&s.ledger, l, into, full, used, n, pending)
	}
	if used == 0 {
		return w
	}
	if want&WantNext != 0 {
		if next := min(used, l.Size) - 1; w.Retry > 0 && next == l.Size-n {
			w.Next = w.Retry // the unit that is waited for is the next one
		} else {
			w.Next = c.until(&s.ledger, into, full, next)
		}
	}
	if want&WantReset != 0 {
		w.Reset = c.until(&s.ledger, into, full, 0)
	}
	return w
}

// Refund gives n units back to the sub-window of the instant taken.
func (*window) Refund(s *WindowState, l Limit, taken, n int64) {
	epoch, _ := floorDivMod(taken, l.subWindow())
	s.ledger.Refund(epoch, n)
}

// Penalize counts n units as spent.
func (*window) Penalize(s *WindowState, l Limit, now, n int64) {
	epochsOf(l).advance(&s.ledger, now)
	s.ledger.Cur.Own = saturate.Add(s.ledger.Cur.Own, max(n, 0))
}

// Ledger returns the counts that decide.
func (*window) Ledger(s *WindowState) *Ledger { return &s.ledger }

// Advance brings the ledger to the sub-window of now.
func (*window) Advance(s *WindowState, l Limit, now int64) { epochsOf(l).advance(&s.ledger, now) }

// Merge sets what other nodes spent, sub-window by sub-window.
func (*window) Merge(s *WindowState, l Limit, now int64, reports []Report) {
	epochsOf(l).advance(&s.ledger, now)
	s.ledger.merge(reports)
}

// Adopt counts n units in a sub-window.
func (*window) Adopt(s *WindowState, _ Limit, epoch, n int64) { s.ledger.adopt(epoch, n) }

// Spent returns what the sub-windows have that can count.
func (*window) Spent(s *WindowState, l Limit, now int64) (own, remote int64) {
	epochsOf(l).advance(&s.ledger, now)
	return s.ledger.Sum(l.History)
}

// Shift moves the counts by the nearest number of whole sub-windows.
func (*window) Shift(s *WindowState, l Limit, now int64, by time.Duration) {
	epoch, _ := floorDivMod(now, l.subWindow())
	s.ledger.Shift(nearest(int64(by), l.subWindow()), epoch)
}

// Level returns 0.
func (*window) Level(*WindowState, Limit, int64) (level float64, rate int64) { return 0, 0 }

// Idle reports whether nothing was spent in any sub-window that still counts.
func (*window) Idle(s *WindowState, l Limit, now int64) bool {
	epoch, _ := floorDivMod(now, l.subWindow())
	own, remote := s.ledger.Holds(epoch, l.History)
	return !own && !remote
}

// Clone returns a copy that shares nothing with s.
func (*window) Clone(s *WindowState) WindowState { return WindowState{s.ledger.Clone()} }

// epochs are how counts by epoch add up. Time is cut into epochs of length nanoseconds. The
// current epoch and the history-1 before it count in full, and the one before those in the
// proportion in which a window that ends now still covers it. With history 0 only the current
// epoch counts.
type epochs struct {
	length  int64
	history int
}

func epochsOf(l Limit) epochs { return epochs{l.subWindow(), l.History} }

// advance brings the ledger to the epoch of now and returns how far into the ledger's epoch now is.
// It is negative for a request that is late: it counts as if it came at the start of that epoch.
func (c epochs) advance(l *Ledger, now int64) (into int64) {
	into, ok := l.Within(now, c.length)
	if ok {
		return into
	}
	epoch, into := floorDivMod(now, c.length)
	if l.Epoch == epoch+1 {
		if c.length-into <= lateness(c.length) {
			return into - c.length
		}
		l.Renumber(-1)
		return into
	}
	if l.Epoch != epoch {
		l.Advance(epoch, c.history)
	}
	return into
}

// spent returns how many units the epochs have that count in full, and how many count altogether
// at an instant, rounded up. As all that is compared with it is whole, rounding up loses nothing: a
// weighted sum fits under a whole number if and only if the next whole number above it does.
func (c epochs) spent(l *Ledger, into int64) (full, used int64) {
	if full = c.full(l); c.history == 0 {
		return full, full
	}
	fading := l.Age(c.history)
	if into > 0 && fading > 0 {
		fading = mulDivUp(fading, c.length-into, c.length)
	}
	return full, saturate.Add(full, fading)
}

// full is the sum of the epochs that count in full.
func (c epochs) full(l *Ledger) int64 {
	full := l.Cur.Total()
	for age := 1; age < c.history; age++ {
		full = saturate.Add(full, l.Age(age))
	}
	return full
}

// retry is the wait until n units are admitted that are not now.
func (c epochs) retry(led *Ledger, l Limit, into, full, used, n, pending int64) time.Duration {
	switch {
	case n > l.Size:
		return time.Duration(l.Window)
	case n > l.Size-used:
		return c.until(led, into, full, l.Size-n)
	case n <= l.Size-used-pending:
		return 0
	}
	own := led.Cur.Own
	led.Cur.Own = saturate.Add(own, pending) // as if it were spent now
	wait := c.until(led, into, c.full(led), l.Size-n)
	led.Cur.Own = own
	return wait
}

// until is the wait until no more than target (>= 0) units count, where full of them do in full. It
// walks the epochs to come: in each, one more falls out of the sum and the next begins to fade.
func (c epochs) until(l *Ledger, into, full, target int64) time.Duration {
	if c.history == 0 {
		if full <= target {
			return 0
		}
		return time.Duration(c.length - into)
	}
	from := max(into, 0)
	for ahead := 0; ; ahead++ {
		if full <= target {
			from = max(from, c.fadesTo(l.Age(c.history-ahead), target-full))
			return time.Duration(int64(ahead)*c.length + from - into)
		}
		full -= l.Age(c.history - 1 - ahead)
		from = 0
	}
}

// fadesTo is how far into its last epoch a count weighs no more than weight.
func (c epochs) fadesTo(count, weight int64) int64 {
	if count <= weight {
		return 0
	}
	return c.length - mulDiv(weight, c.length, count)
}
