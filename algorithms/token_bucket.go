package algorithms

import "time"

var _ Algorithm[BucketState] = TokenBucket{}

// TokenBucket holds up to Burst tokens and gains Limit of them in every Window, evenly; a request takes one for each unit it costs. It is the bucket
// of RFC 2697 (less its colours), of nginx's and Stripe's limiters and of golang.org/x/time/rate.
//
// Bound: at most Burst + Limit x t / Window in any interval of length t. In one window that is Burst + Limit.
type TokenBucket struct {
	// Limit is the number of requests that flow in per window; 0 refuses all.
	Limit int64
	// Window is the time in which they do, 100ms to 30 days.
	Window time.Duration
	// Burst is the size of the bucket in requests; 0 stands for Limit.
	Burst int64
	// Brief leaves NextAfter and ResetAfter out of what an admitted Take of 1 or more says, for callers that tell nobody.
	Brief bool
}

// Take asks for n units.
func (a TokenBucket) Take(s *BucketState, now, n, hidden int64) Decision {
	d, _ := a.kernel().take(s, now, n, hidden)
	return d
}

// Charge fills the bucket by n units, at most to the brim.
func (a TokenBucket) Charge(s *BucketState, now, n int64) { a.kernel().charge(s, now, n) }

// Return gives n units back.
func (a TokenBucket) Return(s *BucketState, taken, n int64) { a.kernel().giveBack(s, taken, n) }

// Absorb adds what other nodes spent since the last exchange, spread evenly over that time.
func (a TokenBucket) Absorb(s *BucketState, now int64, reports []Report) {
	a.kernel().absorb(s, now, reports)
}

// Idle reports that the bucket has drained and that its epochs are over.
func (a TokenBucket) Idle(s *BucketState, now int64) bool { return a.kernel().isIdle(s, now) }

// Shift moves the instants, and the totals by the nearest number of whole epochs.
func (a TokenBucket) Shift(s *BucketState, now int64, by time.Duration) { a.kernel().shift(s, now, by) }

// Ledger gives the totals for the exchange. They don't decide.
func (a TokenBucket) Ledger(s *BucketState) *Ledger { return &s.ledger }

// Roll brings the ledger to the epoch of now.
func (a TokenBucket) Roll(s *BucketState, now int64) { a.kernel().roll(s, now) }

// Span is the window, or 10s where that is longer.
func (a TokenBucket) Span(*BucketState) time.Duration { return time.Duration(a.kernel().span()) }

// Live is 1: in the last epoch others may still have something to say. What stands in the bucket longer is in its level.
func (a TokenBucket) Live() int { return 1 }

// Level is the deficit in requests.
func (a TokenBucket) Level(s *BucketState, now int64) float64 { return a.kernel().level(s, now) }

// Slack is what drained while the bucket was empty.
func (a TokenBucket) Slack(s *BucketState, now int64) int64 { return a.kernel().slack(s, now) }

// Rule returns the limit and the window.
func (a TokenBucket) Rule() (limit int64, window time.Duration) { return a.Limit, a.Window }

func (a TokenBucket) kernel() bucket {
	size := a.Burst
	if size <= 0 {
		size = a.Limit
	}
	return newBucket(a.Limit, a.Window, size, a.Brief)
}
