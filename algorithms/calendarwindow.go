package algorithms

import "time"

// Epochs are how the epochs of a ledger are numbered: they have one length, or are the windows of a
// calendar.
type Epochs struct {
	Length   int64
	Calendar *Calendar
}

// Epochs returns those of a limit.
func (p Params) Epochs() Epochs { return Epochs{int64(p.Epoch()), p.Calendar} }

// At is the number of the epoch at an instant.
func (e Epochs) At(now int64) int64 {
	if e.Calendar != nil {
		return e.Calendar.At(now).Number
	}
	return now / max(1, e.Length)
}

// Passed is how many epochs the clock has passed by a step, after which it says now.
func (e Epochs) Passed(now int64, step time.Duration) int64 {
	if e.Calendar != nil {
		return e.Calendar.At(now).Number - e.Calendar.At(now-int64(step)).Number
	}
	return nearest(int64(step), e.Length)
}

// calendarWindow is the machine of FixedWindow by a calendar: the one of windows of one length that
// is more than any has, by a clock that reaches the end of each when the calendar does.
type calendarWindow struct {
	window
	calendar *Calendar
}

// in brings a limit and an instant to that clock. ends is when its window does.
func (m calendarWindow) in(l Limit, now int64) (Limit, int64) {
	s := m.calendar.At(now)
	l.Window = longest(m.calendar.Window)
	return l, (s.Number+1)*l.Window - (s.End - known(now))
}

func (m calendarWindow) Take(s *WindowState, l Limit, now, n, pending int64) Result {
	l, now = m.in(l, now)
	return m.window.Take(s, l, now, n, pending)
}

// Waits are times to the end of the window, or of the next one for a request that is late. One that
// can never be admitted waits as long as the window is.
func (m calendarWindow) Waits(s *WindowState, l Limit, now, n, pending int64, want Want) Waits {
	span := m.calendar.At(now)
	length := longest(m.calendar.Window)
	l, at := m.in(l, now)
	w := m.window.Waits(s, l, at, n, pending, want)
	for _, d := range []*time.Duration{&w.Retry, &w.Next, &w.Reset} {
		switch wait := int64(*d); {
		case wait == length:
			*d = time.Duration(span.End - span.Begin)
		case wait > length:
			next := m.calendar.At(span.End)
			*d = time.Duration(wait - length + next.End - next.Begin)
		}
	}
	return w
}

func (m calendarWindow) Refund(s *WindowState, l Limit, taken, n int64) {
	l, taken = m.in(l, taken)
	m.window.Refund(s, l, taken, n)
}

func (m calendarWindow) Penalize(s *WindowState, l Limit, now, n int64) {
	l, now = m.in(l, now)
	m.window.Penalize(s, l, now, n)
}

func (m calendarWindow) Charge(s *WindowState, l Limit, now, n int64) {
	l, now = m.in(l, now)
	m.window.Charge(s, l, now, n)
}

func (m calendarWindow) Advance(s *WindowState, l Limit, now int64) {
	l, now = m.in(l, now)
	m.window.Advance(s, l, now)
}

func (m calendarWindow) Merge(s *WindowState, l Limit, now int64, reports []Report) {
	l, now = m.in(l, now)
	m.window.Merge(s, l, now, reports)
}

func (m calendarWindow) Spent(s *WindowState, l Limit, now int64) (own, remote int64) {
	l, now = m.in(l, now)
	return m.window.Spent(s, l, now)
}

// Shift moves the counts by as many windows as the clock has passed.
func (m calendarWindow) Shift(s *WindowState, _ Limit, now int64, by time.Duration) {
	e := Epochs{Calendar: m.calendar}
	s.ledger.Shift(e.Passed(now, by), e.At(now))
}

func (m calendarWindow) Idle(s *WindowState, l Limit, now int64) bool {
	l, now = m.in(l, now)
	return m.window.Idle(s, l, now)
}

func (m calendarWindow) Reset(s *WindowState, l Limit, now, upTo int64) int64 {
	l, now = m.in(l, now)
	return m.window.Reset(s, l, now, upTo)
}
