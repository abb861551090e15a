package algorithms

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// A Leaver is a machine with a queue, whose clients may go away while they wait.
type Leaver[S any] interface {
	// Leave refunds the n units of a request that was to wait for delay from the instant taken on,
	// if its client has gone away at now. Its place is freed only if nobody is behind it, give or
	// take half a place; those behind keep their delays, so a place in front of them passes unused.
	// A place that has come is spent.
	Leave(s *S, l Limit, taken, now, n int64, delay time.Duration)
}

// queue is the machine of LeakyBucket: a bucket whose admitted requests wait for what was in it
// before them to drain.
type queue struct{ bucket }

// Take asks for n units.
func (q *queue) Take(s *BucketState, l Limit, now, n, unseen int64) Result {
	r := q.bucket.Take(s, l, now, n, unseen)
	if r.Allowed && n > 0 && l.N > 0 {
		before := s.deficit
		before.whole -= n
		r.Delay = time.Duration(l.drainsTo(before, 0))
	}
	return r
}

// Leave frees the place of a client that has gone away.
func (q *queue) Leave(s *BucketState, l Limit, taken, now, n int64, delay time.Duration) {
	late := s.advance(l, now)
	if l.N == 0 || now < taken || since(now, taken) >= uint64(max(0, delay)) {
		return
	}
	l = s.kept(l)
	place := l.drainsTo(amount{whole: 1}, 0)
	own := saturate.Add(int64(delay)-(now-taken), l.drainsTo(amount{whole: max(n, 0)}, 0))
	if saturate.Add(late, l.drainsTo(s.deficit.floor(), 0)) <= saturate.Add(own, place/2) {
		q.Refund(s, l, taken, n)
	}
}
