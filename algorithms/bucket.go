package algorithms

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// A BucketState is what a bucket remembers of one key: how much of it is used up (the deficit, in
// requests), and since when; never the tokens left, nor an instant at which it is full again, as
// only the deficit is independent of the limit.
type BucketState struct {
	ledger Ledger
	// deficit is exact. It may be above the size (debt). At the instant of a Merge it may be below
	// 0, and counts as 0.
	deficit amount
	// last is the instant the deficit stands for.
	last int64
	// rate is N of the request that was decided last, 0 where none was: see kept.
	rate int64
	// merged is nil for a key of which nothing was ever merged: where nothing is synced it costs
	// no memory.
	merged *merged
	// imported is nil except where a store decides by itself; see Chargeable.
	imported *imported
}

// merged is what a bucket remembers of the last Merge.
type merged struct {
	// at is the instant of the last Merge. base is what is left of the deficit then, without what
	// the store didn't know of yet.
	at   int64
	base amount
	// idle is what could have drained since the Merge before, had the bucket not been empty. What
	// the others are found to have spent in that time has drained there.
	idle amount
	// theirs is what Merge has brought at the instant at.
	theirs int64
}

// copied is a copy for looking ahead, which costs no allocation: what was merged goes into past,
// and what was imported is left out. It shares nothing with s, as the ledger of a bucket has no
// more than two epochs.
func (s *BucketState) copied(past *merged) BucketState {
	c := *s
	c.imported = nil
	if s.merged != nil {
		*past = *s.merged
		c.merged = past
	}
	return c
}

// Clone returns a copy that shares nothing with s.
func (*bucket) Clone(s *BucketState) BucketState {
	c := s.copied(new(merged))
	if s.imported != nil {
		imported := *s.imported
		c.imported = &imported
	}
	c.ledger = s.ledger.Clone()
	return c
}

// bucket is the machine of TokenBucket and GCRA, and most of that of LeakyBucket: a deficit that
// grows by what is admitted and drains N in every Window. n units are admitted if the deficit
// stays within Size. The ledger doesn't decide; it is what the sync sends and merges.
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
func (*bucket) Take(s *BucketState, l Limit, now, n, pending int64) (r Result) {
	n = max(n, 0)
	s.advance(l, now)
	s.advanceLedger(l, now)
	if l.N == 0 {
		r, _ = l.closed(n, 0)
		return r
	}
	if n > 0 {
		s.rate = l.N
	}
	r = decide(l.Size, s.deficit.floor().ceil(), n, s.drainedOf(pending))
	if r.Allowed && n > 0 {
		s.spend(n)
	}
	return r
}

// Waits works out the waits that are wanted.
func (*bucket) Waits(s *BucketState, l Limit, now, n, pending int64, want Want) (w Waits) {
	n = max(n, 0)
	late := s.advance(l, now)
	s.advanceLedger(l, now)
	if l.N == 0 {
		_, w = l.closed(n, want)
		return w
	}
	l = s.kept(l)
	level := s.deficit.floor()
	used := level.ceil()
	if want&WantRetry != 0 {
		switch pending = s.drainedOf(pending); {
		case n > l.Size:
			w.Retry = time.Duration(l.Window)
		case n > l.Size-used:
			w.Retry = wait(late, l.drainsTo(level, l.Size-n))
		case n > l.Size-used-pending: // as if it were spent now
			w.Retry = wait(late, l.drainsTo(level.plus(amount{whole: pending}, l.Window), l.Size-n))
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

// Refund gives n units back.
func (*bucket) Refund(s *BucketState, l Limit, taken, n int64) {
	n = max(n, 0)
	epoch, _ := floorDivMod(taken, l.bucketEpoch())
	s.ledger.Refund(epoch, n)
	switch {
	case s.deficit.whole >= n:
		s.deficit.whole -= n
	case s.deficit.whole >= 0:
		s.deficit = amount{}
	}
	if s.merged != nil && s.deficit.less(s.merged.base) {
		s.merged.base = s.deficit.floor() // once it is sent, the store's fill lacks it as well
	}
}

// Penalize fills at most until it is full. That may be a part of a request. Think of requests that
// drain one after the other since the Unix epoch: the ledger counts one where its end is in the
// part. So the parts of a bucket that is kept full add up, to less than one request more or less.
func (*bucket) Penalize(s *BucketState, l Limit, now, n int64) {
	s.advance(l, now)
	s.advanceLedger(l, now)
	level := s.deficit.floor()
	switch room := l.Size - level.whole; {
	case n <= 0 || l.N == 0 || room <= 0:
	case n < room || n == room && level.frac == 0:
		s.spend(n)
	default:
		part := amount{whole: l.Size}.minus(level, l.Window)
		s.spend(part.whole)
		s.deficit = amount{whole: l.Size}
		if s.kept(l).phase(s.last) < part.frac {
			s.ledger.Cur.Own = saturate.Add(s.ledger.Cur.Own, 1)
		}
	}
}

// Adopt counts n units as spent in an epoch: the bucket has them by the level that comes with them.
func (*bucket) Adopt(s *BucketState, _ Limit, epoch, n int64) { s.ledger.adopt(epoch, n) }

// Spent returns what was spent in the two epochs.
func (*bucket) Spent(s *BucketState, l Limit, now int64) (own, remote int64) {
	s.advance(l, now)
	s.advanceLedger(l, now)
	return s.ledger.Sum(1)
}

// Ledger returns the totals for the sync. They don't decide.
func (*bucket) Ledger(s *BucketState) *Ledger { return &s.ledger }

// Advance brings the ledger to the epoch of now.
func (*bucket) Advance(s *BucketState, l Limit, now int64) { s.advanceLedger(l, now) }

// Merge spreads what the others spent evenly over the time since the last sync: first it subtracts
// what the bucket could have drained in that time and didn't, being empty; only the rest is added
// to the deficit. Added at once it would deny what the bucket had long drained.
func (*bucket) Merge(s *BucketState, l Limit, now int64, reports []Report) {
	s.advance(l, now)
	s.advanceLedger(l, now)
	var theirs int64
	held := false
	for _, r := range reports {
		count, ok := s.ledger.At(r.Epoch)
		if !ok {
			continue
		}
		held = true
		remote := max(0, r.Remote)
		theirs = saturate.Add(theirs, remote-count.Remote)
		count.Remote = remote
		s.ledger.Put(r.Epoch, count)
	}
	if !held {
		return
	}
	s.imported = nil // the sync knows better what is sent
	level, known := s.seen(s.kept(l), reports)
	l = s.kept(l)
	switch {
	case s.merged != nil && !s.isStale(l):
		s.spread(l, theirs, level, known && !s.ledger.IsKept())
	case known:
		s.importLevel(l, level)
	case s.merged != nil && s.ledger.IsEmpty():
		return // the store has lost what it knew, and others may not have sent it again
	default:
		s.lump(l, theirs)
	}
	s.merged.at, s.merged.base = s.last, s.confirmed()
	s.ledger.Synced = true
}

// Shift moves the instants, and the totals by the nearest number of whole epochs.
func (*bucket) Shift(s *BucketState, l Limit, now int64, by time.Duration) {
	s.last = saturate.Add(s.last, int64(by))
	if s.merged != nil {
		s.merged.at = saturate.Add(s.merged.at, int64(by))
	}
	epoch, _ := floorDivMod(now, l.bucketEpoch())
	s.ledger.Shift(nearest(int64(by), l.bucketEpoch()), epoch)
}

// Level returns the deficit in requests, and the N that it drains at.
func (*bucket) Level(s *BucketState, l Limit, now int64) (level float64, rate int64) {
	var past merged
	c := s.copied(&past)
	c.advance(l, now)
	deficit := c.deficit.floor()
	return float64(deficit.whole) + float64(deficit.frac)/float64(l.Window), s.kept(l).N
}

// Idle reports whether the bucket has drained and its epochs are over.
func (*bucket) Idle(s *BucketState, l Limit, now int64) bool {
	var past merged
	c := s.copied(&past)
	if c.advance(l, now) > 0 {
		return false
	}
	if s.kept(l).N > 0 && c.deficit.floor() != (amount{}) {
		return false
	}
	epoch, _ := floorDivMod(now, l.bucketEpoch())
	own, _ := c.ledger.Holds(epoch, 1)
	return !own
}

// advance drains the bucket up to now, and returns by how much now is behind the state where it is
// late. After a step of the clock the deficit stays as it was and drains from there.
func (s *BucketState) advance(l Limit, now int64) (late int64) {
	if now <= s.last {
		if behind := since(s.last, now); behind <= uint64(lateness(l.Window)) {
			return int64(behind)
		}
		s.last = now
		if s.merged != nil {
			s.merged.at = min(s.merged.at, now)
		}
		return 0
	}
	if s.merged != nil && s.last == s.merged.at {
		s.merged.idle, s.merged.theirs = amount{}, 0
	}
	level := s.deficit.floor()
	level.frac = min(level.frac, l.Window-1)
	drained := s.kept(l).drains(since(now, s.last))
	s.imported.drain(drained, l.Window)
	if s.merged != nil {
		s.merged.base = s.merged.base.after(drained, l.Window)
	}
	s.last = now
	if level.less(drained) {
		if s.merged != nil {
			s.merged.idle = s.merged.idle.plus(drained.minus(level, l.Window), l.Window)
		}
		s.deficit = amount{}
		return 0
	}
	s.deficit = level.minus(drained, l.Window)
	return 0
}

// advanceLedger brings the ledger to the epoch of now. What leaves it without having been sent is
// carried over to the current epoch, as far as it still stands in the bucket: what came later
// stands there first.
func (s *BucketState) advanceLedger(l Limit, now int64) {
	led := &s.ledger
	if _, ok := led.Within(now, l.bucketEpoch()); ok {
		return
	}
	epoch, _ := floorDivMod(now, l.bucketEpoch())
	var left int64
	switch ahead := epoch - led.Epoch; {
	case ahead == 1:
		left = led.Prev.Unsent()
	case ahead > 1:
		left = led.Unsent(1)
	}
	led.Advance(epoch, 1)
	if left > 0 {
		stands := s.kept(l).drained(s.deficit.floor(), now, s.last).ceil() - led.Unsent(1)
		led.Cur.Own = saturate.Add(led.Cur.Own, min(left, max(0, stands)))
	}
}

// spend adds n units of this node to the deficit and to the ledger.
func (s *BucketState) spend(n int64) {
	if s.deficit.whole < 0 {
		s.deficit = amount{}
		if s.merged != nil {
			s.merged.idle, s.merged.theirs = amount{}, 0
		}
	}
	s.deficit.whole = saturate.Add(s.deficit.whole, n)
	s.ledger.Cur.Own = saturate.Add(s.ledger.Cur.Own, n)
}

// drainedOf is what is left of pending units when the bucket has drained its part of them: it was
// empty for some of the time since the last Merge, and so much of what others have spent since then
// has drained too.
func (s *BucketState) drainedOf(pending int64) int64 {
	if s.merged != nil {
		pending -= s.merged.idle.whole
	}
	return max(0, pending)
}

// isStale reports whether the ledger may lack something that still stands in the bucket: the last
// Merge is two or more epochs back, so that what others spent in between was in epochs that are
// not held any more. A bucket that drains within an epoch has drained that, and goes on with what
// is new as long as it is synced.
func (s *BucketState) isStale(l Limit) bool {
	last, _ := floorDivMod(s.merged.at, l.bucketEpoch())
	return s.ledger.Epoch-last >= 2 && (l.Size > l.N || !s.ledger.Synced)
}

// confirmed is the deficit without what the store doesn't know of yet.
func (s *BucketState) confirmed() amount {
	base := s.deficit.floor()
	if unsent := s.ledger.Unsent(1); unsent < base.whole {
		base.whole -= unsent
		return base
	} else if unsent > 0 {
		return amount{}
	}
	return base
}

// spread adds what the others spent since the last sync. All that comes at one instant has the
// effect of its sum, in any order: the effect of what came before is taken back first.
//
// Where the store's fill is known, it bounds what is added: it has what still stood in the buckets
// of nodes that come back from being cut off, while the totals have all that they had admitted
// meanwhile, most of which has drained.
func (s *BucketState) spread(l Limit, theirs int64, level amount, bounded bool) {
	before := s.effect(l)
	s.merged.theirs = saturate.Add(s.merged.theirs, theirs)
	added := s.effect(l).minus(before, l.Window)
	if room := s.above(l, level); bounded && room.less(added) {
		added = room
		s.merged.idle, s.merged.theirs = amount{}, 0
	}
	s.deficit = s.deficit.plus(added, l.Window)
}

// above is how far a level of now is above what was known at the last sync, 0 where it isn't.
func (s *BucketState) above(l Limit, level amount) amount {
	return level.after(s.merged.base, l.Window)
}

// effect is what is left of theirs when the idle time has drained its part. What was refunded has
// its full effect.
func (s *BucketState) effect(l Limit) amount {
	theirs := amount{whole: s.merged.theirs}
	switch {
	case s.merged.theirs < 0:
		return theirs
	case theirs.less(s.merged.idle):
		return amount{}
	}
	return theirs.minus(s.merged.idle, l.Window)
}

// seen is the fill of the bucket now, as the store has it. A state that has decided nothing goes on
// at the rate of what it is told.
func (s *BucketState) seen(l Limit, reports []Report) (level amount, ok bool) {
	for _, r := range reports {
		if _, held := s.ledger.At(r.Epoch); !held || r.LevelAt <= 0 {
			continue
		}
		ok = true
		if now := r.left(l, s.last); level.less(now) {
			level = now
		}
		if s.rate == 0 {
			s.rate = max(0, r.Rate)
		}
	}
	return level, ok
}

// importLevel takes the level in the store for what this node knew at the last sync, where it is
// higher, and adds what this node has spent since.
func (s *BucketState) importLevel(l Limit, level amount) {
	s.begin()
	s.deficit = s.deficit.plus(s.above(l, level), l.Window)
}

// lump adds what the others spent where nobody knows when: at most until it is full, as they too
// had a bucket.
func (s *BucketState) lump(l Limit, theirs int64) {
	s.begin()
	if room := l.Size - s.deficit.ceil(); room > 0 {
		s.deficit.whole += min(room, max(0, theirs))
	}
}

// begin forgets what came at this instant.
func (s *BucketState) begin() {
	if s.merged == nil {
		s.merged = new(merged)
	}
	s.deficit, s.merged.idle, s.merged.theirs = s.deficit.floor(), amount{}, 0
}

// wait is a time seen by a request that is late by some of it.
func wait(late, ns int64) time.Duration { return time.Duration(saturate.Add(late, ns)) }

// minEpoch is the shortest epoch of a bucket. The hashes of shorter ones would come and go faster
// than a cut-off node comes back.
const minEpoch = int64(10 * time.Second)

// bucketEpoch is the length of an epoch of a bucket. It depends on nothing but the window.
func (l Limit) bucketEpoch() int64 { return max(l.Window, minEpoch) }
