package algorithms

import "time"

var _ Algorithm[WindowState] = FixedWindow{}

// FixedWindow counts the requests of each aligned window and starts the next at 0. It is the oldest of rate limits: Kong's
// rate-limiting plugin, RFC 6585's examples and most public APIs work so. Windows are aligned to the Unix epoch, in UTC.
//
// Bound: at most Limit in an aligned window, and so at most 2 x Limit in any interval of the window's length, half before an edge and
// half after it.
type FixedWindow struct {
	// Limit is the number of requests per window; 0 refuses all.
	Limit int64
	// Window is the length of the window, 1ms to ten years.
	Window time.Duration
	// Brief leaves NextAfter and ResetAfter out of what an admitted Take of 1 or more says, for callers that tell nobody.
	Brief bool
}

// Take asks for n units.
func (a FixedWindow) Take(s *WindowState, now, n, hidden int64) Decision {
	return a.kernel().take(s, now, n, hidden, a.Brief)
}

// Charge spends n units unasked.
func (a FixedWindow) Charge(s *WindowState, now, n int64) { a.kernel().charge(s, now, n) }

// Return gives n units back to the window of the instant taken.
func (a FixedWindow) Return(s *WindowState, taken, n int64) { a.kernel().giveBack(s, taken, n) }

// Absorb sets what other nodes spent, window by window.
func (a FixedWindow) Absorb(s *WindowState, now int64, reports []Report) {
	a.kernel().absorb(s, now, reports)
}

// Idle reports that nothing was spent in the current window.
func (a FixedWindow) Idle(s *WindowState, now int64) bool { return a.kernel().idle(s, now) }

// Shift moves the counts by the nearest number of whole windows.
func (a FixedWindow) Shift(s *WindowState, now int64, by time.Duration) { a.kernel().shift(s, now, by) }

// Ledger gives the counts that decide.
func (a FixedWindow) Ledger(s *WindowState) *Ledger { return &s.ledger }

// Roll brings the ledger to the window of now.
func (a FixedWindow) Roll(s *WindowState, now int64) { a.kernel().roll(s, now) }

// Span is the window.
func (a FixedWindow) Span(*WindowState) time.Duration { return time.Duration(a.kernel().span) }

// Live is 0: no window but the current one decides.
func (a FixedWindow) Live() int { return 0 }

// Level is 0.
func (a FixedWindow) Level(*WindowState, int64) float64 { return 0 }

// Slack is 0.
func (a FixedWindow) Slack(*WindowState, int64) int64 { return 0 }

// Rule returns the limit and the window.
func (a FixedWindow) Rule() (limit int64, window time.Duration) { return a.Limit, a.Window }

func (a FixedWindow) kernel() counters {
	return counters{limit: a.Limit, window: a.Window, span: nanoseconds(a.Window)}
}
