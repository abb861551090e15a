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

// calendarWindow is the machine of FixedWindow by a calendar.
type calendarWindow struct{ window }

// Waits has who can never be admitted wait as long as the window is.
func (m *calendarWindow) Waits(s *WindowState, l Limit, now, n, unseen int64, want Want) Waits {
	_, _, l.Window = m.at(l, now)
	return m.window.Waits(s, l, now, n, unseen, want)
}
