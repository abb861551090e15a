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
type window struct {
	calendar *Calendar // of a FixedWindow, nil where windows have one length
}

// Take asks for n units.
func (m *window) Take(s *WindowState, l Limit, now, n, unseen int64) (r Result) {
	n, unseen = max(n, 0), max(unseen, 0)
	c, into := m.advance(s, l, now)
	if l.N == 0 {
		r, _ = l.closed(n, 0)
		return r
	}
	_, used := c.spent(&s.ledger, into)
	r = decide(l.Size, used, n, unseen)
	if r.Allowed {
		s.ledger.Cur.Own += n
	}
	return r
}

// Waits works out the waits that are wanted.
func (m *window) Waits(s *WindowState, l Limit, now, n, unseen int64, want Want) (w Waits) {
	n, unseen = max(n, 0), max(unseen, 0)
	c, into := m.advance(s, l, now)
	if l.N == 0 {
		_, w = l.closed(n, want)
		return w
	}
	full, used := c.spent(&s.ledger, into)
	if want&WantRetry != 0 {
		w.Retry = c.retry(&s.ledger, l, into, full, used, n, unseen)
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
func (m *window) Refund(s *WindowState, l Limit, taken, n int64) {
	epoch, _, _ := m.at(l, taken)
	s.ledger.Refund(epoch, n)
}

// Penalize counts n units as spent.
func (m *window) Penalize(s *WindowState, l Limit, now, n int64) {
	m.advance(s, l, now)
	s.ledger.Cur.Own = saturate.Add(s.ledger.Cur.Own, max(n, 0))
}

// Ledger returns the counts that decide.
func (*window) Ledger(s *WindowState) *Ledger { return &s.ledger }

// Advance brings the ledger to the sub-window of now.
func (m *window) Advance(s *WindowState, l Limit, now int64) { m.advance(s, l, now) }

// Merge sets what other nodes spent, sub-window by sub-window.
func (m *window) Merge(s *WindowState, l Limit, now int64, reports []Report) {
	m.advance(s, l, now)
	s.ledger.merge(reports)
}

// Adopt counts n units in a sub-window.
func (*window) Adopt(s *WindowState, _ Limit, epoch, n int64) { s.ledger.adopt(epoch, n) }

// Spent returns what the sub-windows have that can count.
func (m *window) Spent(s *WindowState, l Limit, now int64) (own, remote int64) {
	m.advance(s, l, now)
	return s.ledger.Sum(l.History)
}

// Shift moves the counts by the nearest number of whole sub-windows, or by as many windows of a
// calendar as the clock has passed.
func (m *window) Shift(s *WindowState, l Limit, now int64, by time.Duration) {
	epoch, _, _ := m.at(l, now)
	s.ledger.Shift(Epochs{l.subWindow(), m.calendar}.Passed(now, by), epoch)
}

// Level returns 0.
func (*window) Level(*WindowState, Limit, int64) (level float64, rate int64) { return 0, 0 }

// Idle reports whether nothing was spent in any sub-window that still counts.
func (m *window) Idle(s *WindowState, l Limit, now int64) bool {
	epoch, _, _ := m.at(l, now)
	own, remote := s.ledger.Holds(epoch, l.History)
	return !own && !remote
}

// Clone returns a copy that shares nothing with s.
func (*window) Clone(s *WindowState) WindowState { return WindowState{s.ledger.Clone()} }

// epochs are how counts by epoch add up, where epochs are length nanoseconds long. The current one
// and the history-1 before it count in full, and the one before those in the proportion in which a
// window that ends now still covers it. With history 0 only the current epoch counts, and may have
// another length than others.
type epochs struct {
	length  int64
	history int
}

// at is the epoch of an instant, how far into it that is, and how long it is.
func (m *window) at(l Limit, now int64) (epoch, into, length int64) {
	if m.calendar != nil {
		s := m.calendar.At(now)
		return s.Number, known(now) - s.Begin, s.End - s.Begin
	}
	length = l.subWindow()
	epoch, into = floorDivMod(now, length)
	return epoch, into, length
}

// advance brings the ledger to the epoch of now, and returns how its epochs add up and how far into
// the current one now is. That is negative for a request that is late: it counts as if it came at
// the start of that epoch.
func (m *window) advance(s *WindowState, l Limit, now int64) (c epochs, into int64) {
	if m.calendar == nil {
		c = epochs{l.subWindow(), l.History}
		if into, ok := s.ledger.Within(now, c.length); ok {
			return c, into
		}
	}
	return m.move(&s.ledger, l, now)
}

// move is advance where that may be another epoch.
func (m *window) move(led *Ledger, l Limit, now int64) (c epochs, into int64) {
	epoch, into, length := m.at(l, now)
	switch {
	case led.Epoch == epoch+1 && length-into <= lateness(length):
		now, into = now+length-into, into-length
		_, _, length = m.at(l, now)
	case led.Epoch == epoch+1:
		led.Renumber(-1)
	case led.Epoch != epoch:
		led.Advance(epoch, l.History)
	}
	return epochs{length, l.History}, into
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
func (c epochs) retry(led *Ledger, l Limit, into, full, used, n, unseen int64) time.Duration {
	switch {
	case n > l.Size:
		return time.Duration(l.Window)
	case n > l.Size-used:
		return c.until(led, into, full, l.Size-n)
	case n <= l.Size-used-unseen:
		return 0
	}
	own := led.Cur.Own
	led.Cur.Own = saturate.Add(own, unseen) // as if it were spent now
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
