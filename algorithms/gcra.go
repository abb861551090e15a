package algorithms

import "time"

var _ Algorithm[BucketState] = GCRA{}

// GCRA is the generic cell rate algorithm (ITU-T I.371, annex A; ATM Forum Traffic Management 4.1), as in redis-cell, throttled and governor.
// It is told in times: one request is emitted every T = Window / Limit, and the theoretical arrival time TAT of the next one moves on by T with
// every unit. A request is admitted while TAT is no more than a tolerance ahead of the clock once it has been moved.
//
// With a tolerance of Burst x T that is a token bucket of size Burst to the nanosecond, as TAT - now = deficit x T. What is kept is the deficit: a TAT
// is an instant that was worked out with one limit and says nothing under another.
//
// Bound: at most Burst + Limit x t / Window in any interval of length t. In one window that is Burst + Limit.
type GCRA struct {
	// Limit is the number of requests that are emitted per window; 0 refuses all.
	Limit int64
	// Window is the time in which they are, 100ms to 30 days.
	Window time.Duration
	// Burst is how many requests may come at once; 0 stands for Limit, 1 spaces all of them by T.
	Burst int64
	// Brief leaves NextAfter and ResetAfter out of what an admitted Take of 1 or more says, for callers that tell nobody.
	Brief bool
}

// Take asks for n units.
func (a GCRA) Take(s *BucketState, now, n, hidden int64) Decision {
	d, _ := a.kernel().take(s, now, n, hidden)
	return d
}

// Charge fills the bucket by n units, at most to the brim.
func (a GCRA) Charge(s *BucketState, now, n int64) { a.kernel().charge(s, now, n) }

// Return gives n units back.
func (a GCRA) Return(s *BucketState, taken, n int64) { a.kernel().giveBack(s, taken, n) }

// Absorb adds what other nodes spent since the last exchange, spread evenly over that time.
func (a GCRA) Absorb(s *BucketState, now int64, reports []Report) {
	a.kernel().absorb(s, now, reports)
}

// Idle reports that the bucket has drained and that its epochs are over.
func (a GCRA) Idle(s *BucketState, now int64) bool { return a.kernel().isIdle(s, now) }

// Shift moves the instants, and the totals by the nearest number of whole epochs.
func (a GCRA) Shift(s *BucketState, now int64, by time.Duration) { a.kernel().shift(s, now, by) }

// Ledger gives the totals for the exchange. They don't decide.
func (a GCRA) Ledger(s *BucketState) *Ledger { return &s.ledger }

// Roll brings the ledger to the epoch of now.
func (a GCRA) Roll(s *BucketState, now int64) { a.kernel().roll(s, now) }

// Span is the window, or 10s where that is longer.
func (a GCRA) Span(*BucketState) time.Duration { return time.Duration(a.kernel().span()) }

// Live is 1: in the last epoch others may still have something to say. What stands in the bucket longer is in its level.
func (a GCRA) Live() int { return 1 }

// Level is the deficit in requests.
func (a GCRA) Level(s *BucketState, now int64) float64 { return a.kernel().level(s, now) }

// Slack is what drained while the bucket was empty.
func (a GCRA) Slack(s *BucketState, now int64) int64 { return a.kernel().slack(s, now) }

// Rule returns the limit and the window.
func (a GCRA) Rule() (limit int64, window time.Duration) { return a.Limit, a.Window }

func (a GCRA) kernel() bucket {
	tolerated := a.Burst
	if tolerated <= 0 {
		tolerated = a.Limit
	}
	return newBucket(a.Limit, a.Window, tolerated, a.Brief)
}
