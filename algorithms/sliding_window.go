package algorithms

import "time"

var _ Algorithm[WindowState] = SlidingWindow{}

// SlidingWindow estimates the requests of the window that ends now from counts of aligned ones: the current one, plus the one before in
// the proportion in which the sliding window still covers it. Kong's rate-limiting-advanced and Cloudflare ("How we built rate limiting
// capable of scaling to millions of domains", 2017) work so. Buckets cuts the window finer: n whole slices and one that fades.
//
// Bound: the weighted count never passes Limit. The true count of any interval of the window's length can, as a fading count says
// nothing of where in its slice the requests stood: at most 2 x Limit with one bucket, and only when a full burst stands at the end of a slice.
// With n buckets the excess is what stood in one slice and has faded, at most Limit; for arrivals no burstier than a slice, near Limit / n.
//
// The window that counts is Buckets whole slices: Window less a rest of fewer than Buckets nanoseconds.
type SlidingWindow struct {
	// Limit is the number of requests per window; 0 refuses all.
	Limit int64
	// Window is the length of the window, 1ms to ten years.
	Window time.Duration
	// Buckets is how many slices the window is cut into, 1 to MaxLive; 0 stands for 1.
	Buckets int
	// Brief leaves NextAfter and ResetAfter out of what an admitted Take of 1 or more says, for callers that tell nobody.
	Brief bool
}

// Take asks for n units.
func (a SlidingWindow) Take(s *WindowState, now, n, hidden int64) Decision {
	return a.kernel().take(s, now, n, hidden, a.Brief)
}

// Charge spends n units unasked.
func (a SlidingWindow) Charge(s *WindowState, now, n int64) { a.kernel().charge(s, now, n) }

// Return gives n units back to the slice of the instant taken.
func (a SlidingWindow) Return(s *WindowState, taken, n int64) { a.kernel().giveBack(s, taken, n) }

// Absorb sets what other nodes spent, slice by slice.
func (a SlidingWindow) Absorb(s *WindowState, now int64, reports []Report) {
	a.kernel().absorb(s, now, reports)
}

// Idle reports that nothing was spent in any slice that still counts.
func (a SlidingWindow) Idle(s *WindowState, now int64) bool { return a.kernel().idle(s, now) }

// Shift moves the counts by the nearest number of whole slices.
func (a SlidingWindow) Shift(s *WindowState, now int64, by time.Duration) {
	a.kernel().shift(s, now, by)
}

// Ledger gives the counts that decide.
func (a SlidingWindow) Ledger(s *WindowState) *Ledger { return &s.ledger }

// Roll brings the ledger to the slice of now.
func (a SlidingWindow) Roll(s *WindowState, now int64) { a.kernel().roll(s, now) }

// Span is the length of one slice.
func (a SlidingWindow) Span(*WindowState) time.Duration { return time.Duration(a.kernel().span) }

// Live is the number of slices.
func (a SlidingWindow) Live() int { return a.kernel().live }

// Level is 0.
func (a SlidingWindow) Level(*WindowState, int64) float64 { return 0 }

// Slack is 0.
func (a SlidingWindow) Slack(*WindowState, int64) int64 { return 0 }

// Rule returns the limit and the window.
func (a SlidingWindow) Rule() (limit int64, window time.Duration) { return a.Limit, a.Window }

func (a SlidingWindow) kernel() counters {
	buckets, span := 1, nanoseconds(a.Window)
	if a.Buckets > 1 {
		buckets = min(a.Buckets, MaxLive)
		span /= int64(buckets)
	}
	return counters{limit: a.Limit, window: a.Window, span: max(1, span), live: buckets}
}
