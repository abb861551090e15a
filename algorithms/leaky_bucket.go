package algorithms

import "time"

var _ Algorithm[BucketState] = LeakyBucket{}

// LeakyBucket is a queue: requests leave it one every Window / Limit, and who comes when it is full is refused. It is the leaky bucket as a
// queue (Tanenbaum, Computer Networks, 5.4.2) and nginx's limit_req with burst. Decision.Delay says how long an admitted request
// has to wait for its turn; waiting is the caller's part.
//
// Bound: requests start no closer than Window / Limit, so at most 1 + Limit x t / Window start in any interval of length t, and Queue more are
// admitted to wait. None waits longer than Queue x Window / Limit, but for what other nodes admitted meanwhile. A request of several
// units starts when its first may, and holds the queue for all of them.
type LeakyBucket struct {
	// Limit is the number of requests that leave the queue per window; 0 refuses all.
	Limit int64
	// Window is the time in which they do, 100ms to 30 days.
	Window time.Duration
	// Queue is how many requests can wait, beside the one that is served.
	Queue int64
	// Brief leaves NextAfter and ResetAfter out of what an admitted Take of 1 or more says, for callers that tell nobody.
	Brief bool
}

// Take asks for n units.
func (a LeakyBucket) Take(s *BucketState, now, n, hidden int64) Decision {
	k := a.kernel()
	d, before := k.take(s, now, n, hidden)
	if d.Allowed && n > 0 {
		d.Delay = time.Duration(k.drainsTo(before, 0))
	}
	return d
}

// Charge fills the bucket by n units, at most to the brim.
func (a LeakyBucket) Charge(s *BucketState, now, n int64) { a.kernel().charge(s, now, n) }

// Return gives n units back.
func (a LeakyBucket) Return(s *BucketState, taken, n int64) { a.kernel().giveBack(s, taken, n) }

// Absorb adds what other nodes spent since the last exchange, spread evenly over that time.
func (a LeakyBucket) Absorb(s *BucketState, now int64, reports []Report) {
	a.kernel().absorb(s, now, reports)
}

// Idle reports that the bucket has drained and that its epochs are over.
func (a LeakyBucket) Idle(s *BucketState, now int64) bool { return a.kernel().isIdle(s, now) }

// Shift moves the instants, and the totals by the nearest number of whole epochs.
func (a LeakyBucket) Shift(s *BucketState, now int64, by time.Duration) { a.kernel().shift(s, now, by) }

// Ledger gives the totals for the exchange. They don't decide.
func (a LeakyBucket) Ledger(s *BucketState) *Ledger { return &s.ledger }

// Roll brings the ledger to the epoch of now.
func (a LeakyBucket) Roll(s *BucketState, now int64) { a.kernel().roll(s, now) }

// Span is the window, or 10s where that is longer.
func (a LeakyBucket) Span(*BucketState) time.Duration { return time.Duration(a.kernel().span()) }

// Live is 1: in the last epoch others may still have something to say. What stands in the bucket longer is in its level.
func (a LeakyBucket) Live() int { return 1 }

// Level is the deficit in requests.
func (a LeakyBucket) Level(s *BucketState, now int64) float64 { return a.kernel().level(s, now) }

// Slack is what drained while the bucket was empty.
func (a LeakyBucket) Slack(s *BucketState, now int64) int64 { return a.kernel().slack(s, now) }

// Rule returns the limit and the window.
func (a LeakyBucket) Rule() (limit int64, window time.Duration) { return a.Limit, a.Window }

// Leave gives back the n units of a request that was told at the instant taken to wait for delay, and whose client has gone away at now. Its
// place is freed only if nobody stands behind it, give or take half a place; to the others nothing can be promised anew,
// so the place in front of them passes unused. A turn that has come is spent.
func (a LeakyBucket) Leave(s *BucketState, taken, now, n int64, delay time.Duration) {
	k := a.kernel()
	late := k.advance(s, now)
	if k.limit == 0 || now < taken || since(now, taken) >= uint64(max(0, delay)) {
		return
	}
	place := k.drainsTo(amount{whole: 1}, 0)
	own := addSat(int64(delay)-(now-taken), k.drainsTo(amount{whole: max(n, 0)}, 0))
	if addSat(late, k.drainsTo(s.deficit.floor(), 0)) <= addSat(own, place/2) {
		k.giveBack(s, taken, n)
	}
}

func (a LeakyBucket) kernel() bucket {
	return newBucket(a.Limit, a.Window, addSat(max(a.Queue, 0), 1), a.Brief)
}
