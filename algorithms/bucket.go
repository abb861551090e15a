package algorithms

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// A BucketState is what a bucket remembers of one key: how much of it is used up (the deficit, in
// requests), and since when; never the tokens left, nor an instant at which it is full again, as
// only the deficit is independent of the limit.
type BucketState struct {
	// ledger has one epoch that never ends: what this node has spent in all, and the others.
	ledger Ledger
	// deficit is exact. It may be above the size (debt).
	deficit amount
	// last is the instant the deficit stands for.
	last int64
	// rate is N of the request that was decided last, 0 where none was: see kept.
	rate int64
	// shared is nil where nothing is synced.
	shared *shared
}

// shared is what a bucket remembers of its syncs.
type shared struct {
	// start names the state: what this node has spent counts from then on. former is what it had
	// spent in those before.
	start, former int64
	// first is when the first unit was spent that the store doesn't have, 0 where it has all, and
	// later the first that was not said.
	first, later int64
	// answered is set once there was an answer.
	answered bool
	// decided is set where a request was decided since the last answer.
	decided bool
	// filled is set where a penalty has filled the bucket since.
	filled bool
	// added is what was ever added, by the last answer and since.
	added int64
	// idle is what could have drained since the last answer, had the bucket not been empty. What
	// the others are found to have spent in that time has drained there.
	idle amount
}

// Clone returns a copy that shares nothing with s.
func (*bucket) Clone(s *BucketState) BucketState {
	c := *s
	if s.shared != nil {
		shared := *s.shared
		c.shared = &shared
	}
	return c
}

// bucket is the machine of TokenBucket and GCRA, and most of that of LeakyBucket: a deficit that
// grows by what is admitted and drains N in every Window. n units are admitted if the deficit
// stays within Size. The ledger doesn't decide; it is what the sync says.
//
// Limits may differ from request to request. What has passed before a request is decided drains at
// the N of the one that was decided before it, admitted or denied, and so does what the sync and
// the sweep work out. Otherwise one look under a high limit would empty the bucket for those who
// have a low one. So what is admitted in an interval is at most the largest Size, plus what the
// limits in force let drain. Who only asks (n 0, or N 0) puts no limit in force.
type bucket struct{}

// kept returns l with the N that the bucket drains at.
func (s *BucketState) kept(l Limit) Limit {
	if s.rate > 0 {
		l.N = s.rate
	}
	return l
}

// Take asks for n units.
func (*bucket) Take(s *BucketState, l Limit, now, n, unseen int64) (r Result) {
	n = max(n, 0)
	s.advance(l, now)
	if l.N == 0 {
		r, _ = l.closed(n, 0)
		return r
	}
	if n > 0 {
		if s.rate = l.N; s.shared != nil {
			s.shared.decided = true
		}
	}
	r = decide(l.Size, s.deficit.floor().ceil(), n, s.drainedOf(unseen))
	if r.Allowed && n > 0 {
		s.spend(n)
	}
	return r
}

// Waits works out the waits that are wanted.
func (*bucket) Waits(s *BucketState, l Limit, now, n, unseen int64, want Want) (w Waits) {
	n = max(n, 0)
	late := s.advance(l, now)
	if l.N == 0 {
		_, w = l.closed(n, want)
		return w
	}
	l = s.kept(l)
	level := s.deficit.floor()
	used := level.ceil()
	if want&WantRetry != 0 {
		switch unseen = s.drainedOf(unseen); {
		case n > l.Size:
			w.Retry = time.Duration(l.Window)
		case n > l.Size-used:
			w.Retry = wait(late, l.drainsTo(level, l.Size-n))
		case n > l.Size-used-unseen: // as if it were spent now
			w.Retry = wait(late, l.drainsTo(level.plus(amount{whole: unseen}, l.Window), l.Size-n))
		}
	}
	if used == 0 {
		return w
	}
	if want&WantNext != 0 {
		w.Next = wait(late, l.drainsTo(level, min(used, l.Size)-1))
	}
	if want&WantReset != 0 {
		w.Reset = wait(late, l.drainsTo(level, 0))
	}
	return w
}

// Refund gives n units back, as far as they can still stand in the bucket.
func (*bucket) Refund(s *BucketState, _ Limit, _, n int64) {
	n = max(n, 0)
	s.ledger.Cur.Own -= min(n, s.ledger.Cur.Own)
	switch {
	case s.deficit.whole >= n:
		s.deficit.whole -= n
	case s.deficit.whole >= 0:
		s.deficit = amount{}
	}
}

// Penalize fills at most until it is full. That may be a part of a request. Think of requests that
// drain one after the other since the Unix epoch: the ledger counts one where its end is in the
// part. So the parts of a bucket that is kept full add up, to less than one request more or less.
//
// The request was decided a while ago, where a store decides as long as its answer took. That is no
// step of the clock.
func (*bucket) Penalize(s *BucketState, l Limit, now, n int64) {
	s.advance(l, max(now, s.last))
	level := s.deficit.floor()
	switch room := l.Size - level.whole; {
	case n <= 0 || l.N == 0 || room <= 0:
	case n < room || n == room && level.frac == 0:
		s.spend(n)
	default:
		part := amount{whole: l.Size}.minus(level, l.Window)
		s.spend(part.whole)
		s.deficit = amount{whole: l.Size}
		if s.shared != nil {
			s.shared.filled = true
		}
		if s.kept(l).phase(s.last) < part.frac {
			s.ledger.Cur.Own = saturate.Add(s.ledger.Cur.Own, 1)
		}
	}
}

// Adopt counts n units as spent.
func (*bucket) Adopt(s *BucketState, _ Limit, _, n int64) { s.spend(n) }

// Spent returns what is in the bucket: first what this node has spent.
func (*bucket) Spent(s *BucketState, l Limit, now int64) (own, remote int64) {
	s.advance(l, now)
	level := s.deficit.floor().ceil()
	own = s.ledger.Cur.Own
	if s.shared != nil {
		own = saturate.Add(own, s.shared.former)
	}
	own = min(level, own)
	return own, level - own
}

// Ledger returns the totals for the sync. They don't decide.
func (*bucket) Ledger(s *BucketState) *Ledger { return &s.ledger }

// Advance drains the bucket.
func (*bucket) Advance(s *BucketState, l Limit, now int64) { s.advance(l, now) }

// Merge takes a level that was known before, where it is higher.
func (*bucket) Merge(s *BucketState, l Limit, now int64, reports []Report) {
	s.advance(l, now)
	for _, r := range reports {
		if r.LevelAt <= 0 {
			continue
		}
		if level := r.left(s.kept(l), s.last); s.deficit.less(level) {
			s.deficit = level
		}
		if s.rate == 0 {
			s.rate = max(0, r.Rate)
		}
	}
}

// Shift moves the instants.
func (*bucket) Shift(s *BucketState, _ Limit, _ int64, by time.Duration) {
	s.last = saturate.Add(s.last, int64(by))
	if p := s.shared; p != nil {
		for _, at := range []*int64{&p.first, &p.later} {
			if *at != 0 {
				*at = saturate.Add(*at, int64(by))
			}
		}
	}
}

// Level returns the deficit in requests, and the N that it drains at.
func (*bucket) Level(s *BucketState, l Limit, now int64) (level float64, rate int64) {
	c := *s
	c.shared = nil
	c.advance(l, now)
	deficit := c.deficit.floor()
	return float64(deficit.whole) + float64(deficit.frac)/float64(l.Window), s.kept(l).N
}

// Idle reports whether the bucket has drained, and the store has not more of this node than it has
// spent.
func (*bucket) Idle(s *BucketState, l Limit, now int64) bool {
	c := *s
	c.shared = nil
	if c.advance(l, now) > 0 {
		return false
	}
	return (s.kept(l).N == 0 || c.deficit.floor() == amount{}) && s.ledger.Cur.Own >= s.ledger.Cur.Acked
}

// advance drains the bucket up to now, and returns by how much now is behind the state where it is
// late. After a step of the clock the deficit stays as it was and drains from there.
func (s *BucketState) advance(l Limit, now int64) (late int64) {
	if now <= s.last {
		if behind := since(s.last, now); behind <= uint64(lateness(l.Window)) {
			return int64(behind)
		}
		s.last = now
		if s.shared != nil {
			s.shared.first, s.shared.later = min(s.shared.first, now), min(s.shared.later, now)
		}
		return 0
	}
	level := s.deficit.floor()
	level.frac = min(level.frac, l.Window-1)
	drained := s.kept(l).drains(since(now, s.last))
	s.last = now
	if level.less(drained) {
		if s.shared != nil {
			s.shared.idle = s.shared.idle.plus(drained.minus(level, l.Window), l.Window)
		}
		s.deficit = amount{}
		return 0
	}
	s.deficit = level.minus(drained, l.Window)
	return 0
}

// spend adds n units of this node to the deficit and to the ledger.
func (s *BucketState) spend(n int64) {
	if n <= 0 {
		return
	}
	if p := s.shared; p != nil {
		p.added = saturate.Add(p.added, n)
		if p.first == 0 {
			p.first = s.last
		}
		if p.later == 0 {
			p.later = s.last
		}
	}
	s.deficit = s.deficit.floor()
	s.deficit.whole = saturate.Add(s.deficit.whole, n)
	s.ledger.Cur.Own = saturate.Add(s.ledger.Cur.Own, n)
}

// drainedOf is what is left of unseen units when the bucket has drained its part of them: it was
// empty for some of the time since the last answer, and so much of what others have spent since
// then has drained too.
func (s *BucketState) drainedOf(unseen int64) int64 {
	if s.shared != nil {
		unseen -= s.shared.idle.whole
	}
	return max(0, unseen)
}

// wait is a time seen by a request that is late by some of it.
func wait(late, ns int64) time.Duration { return time.Duration(saturate.Add(late, ns)) }

// bucketEpoch is the length of the one epoch of a bucket: a century, so that all instants are in
// the epoch 0.
const bucketEpoch = int64(100 * 365 * 24 * time.Hour)
