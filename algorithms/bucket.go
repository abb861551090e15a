package algorithms

import (
	"math"
	"math/bits"
	"time"
)

// A BucketState is what a bucket algorithm remembers of one key: how much of the bucket is used up (the deficit, in requests), and since
// when; never the tokens left, nor an instant at which it is full again, as only the deficit is independent of the limit.
// The zero value is a key never seen. Its owner locks.
type BucketState struct {
	ledger Ledger
	// deficit is exact. It may be above the size (debt). At the instant of an Absorb it may be below 0, and counts as 0.
	deficit amount
	// last is the instant the deficit stands for.
	last int64
	// penalty is the part of a request that Charge has spent and the ledger not counted yet.
	penalty int64
	// absorbed is nil for a key of which nothing was ever learnt: where nothing is exchanged it costs no memory.
	absorbed *absorbed
	// taught is nil but where a store decides by itself; see Chargeable.
	taught *taught
}

// absorbed is what a bucket remembers of the last Absorb.
type absorbed struct {
	// at is the instant of the last Absorb, and base the deficit then, without what the store didn't know of yet.
	at   int64
	base amount
	// idle is what could have drained since the Absorb before, had the bucket not been empty. What the others are
	// found to have spent in that time has drained there.
	idle amount
	// theirs is what Absorb has brought at the instant at.
	theirs int64
}

// copied is a copy of its own, for looking ahead.
func (s *BucketState) copied(past *absorbed) BucketState {
	c := *s
	c.taught = nil
	if s.absorbed != nil {
		*past = *s.absorbed
		c.absorbed = past
	}
	return c
}

// An amount is a number of requests: whole + frac/window, with frac in [0, window).
type amount struct{ whole, frac int64 }

// bucket is the kernel of the bucket algorithms: a deficit that grows by what is admitted and drains limit in every window. n units are
// admitted if the deficit stays within size.
type bucket struct {
	limit, window, size int64
	brief               bool
}

func newBucket(limit int64, window time.Duration, size int64, brief bool) bucket {
	return bucket{limit: max(limit, 0), window: nanoseconds(window), size: size, brief: brief}
}

// take also returns the deficit that stood before the units that were asked for.
func (b bucket) take(s *BucketState, now, n, hidden int64) (d Decision, before amount) {
	n, hidden = max(n, 0), max(hidden, 0)
	late := b.advance(s, now)
	b.roll(s, now)
	if b.limit == 0 {
		return closed(n, time.Duration(b.window)), amount{}
	}
	before = s.deficit.floor()
	used := before.ceil()
	d.Limit = b.limit
	d.Allowed, d.Estimated = verdict(b.size, used, n, hidden)
	switch {
	case d.Allowed && n > 0:
		b.spend(s, n)
		used = addSat(used, n)
	case d.Allowed, d.Estimated:
	case n > b.size:
		d.RetryAfter = time.Duration(b.window)
	default:
		d.RetryAfter = wait(late, b.drainsTo(before, b.size-n))
	}
	d.Remaining = remaining(b.size, used, hidden)
	if used > 0 && !(b.brief && d.Allowed && n > 0) {
		after := s.deficit.floor()
		d.NextAfter = wait(late, b.drainsTo(after, min(used, b.size)-1))
		d.ResetAfter = wait(late, b.drainsTo(after, 0))
	}
	return d, before
}

// charge fills at most to the brim. That may be a part of a request, which the ledger counts once the parts make a whole.
func (b bucket) charge(s *BucketState, now, n int64) {
	b.advance(s, now)
	b.roll(s, now)
	level := s.deficit.floor()
	switch room := b.size - level.whole; {
	case n <= 0 || b.limit == 0 || room <= 0:
	case n < room || n == room && level.frac == 0:
		b.spend(s, n)
	default:
		part := amount{whole: b.size}.minus(level, b.window)
		b.spend(s, part.whole)
		s.deficit = amount{whole: b.size}
		if s.penalty += part.frac; s.penalty >= b.window {
			s.penalty = max(0, s.penalty-b.window)
			s.ledger.Cur.Own = addSat(s.ledger.Cur.Own, 1)
		}
	}
}

func (b bucket) giveBack(s *BucketState, taken, n int64) {
	n = max(n, 0)
	epoch, _ := floorDivMod(taken, b.span())
	s.ledger.giveBack(epoch, n)
	switch {
	case s.deficit.whole >= n:
		s.deficit.whole -= n
	case s.deficit.whole >= 0:
		s.deficit = amount{}
	}
}

// absorb spreads what the others spent evenly over the time since the last exchange: first it takes up what the bucket
// could have drained in that time and didn't, being empty; only the rest is added to the deficit. Added as one lump it would
// refuse what the bucket had long drained.
func (b bucket) absorb(s *BucketState, now int64, reports []Report) {
	b.advance(s, now)
	b.roll(s, now)
	var theirs int64
	held := false
	for _, r := range reports {
		count, ok := s.ledger.At(r.Epoch)
		if !ok {
			continue
		}
		held = true
		elsewhere := max(0, r.Elsewhere)
		theirs = addSat(theirs, elsewhere-count.Elsewhere)
		count.Elsewhere = elsewhere
		s.ledger.Put(r.Epoch, count)
	}
	if !held {
		return
	}
	s.taught = nil // the exchange knows better what is sent
	level, known := b.seen(s, reports)
	switch {
	case s.absorbed != nil && !b.isStale(s):
		b.spread(s, theirs, level, known && !s.ledger.isKept())
	case known:
		b.adopt(s, level)
	case s.absorbed != nil && s.ledger.isEmpty():
		return // the store has lost what it knew, and others may not have told it again
	default:
		b.lump(s, theirs)
	}
	s.absorbed.at, s.absorbed.base = s.last, b.confirmed(s)
	s.ledger.Settled = true
}

// isStale reports whether the ledger may lack something that still stands in the bucket: the last Absorb is two or more epochs
// back, so that what others spent in between was in epochs that are not held any more. A bucket that drains within an epoch has
// drained that, and goes on with what is new as long as it is exchanged.
func (b bucket) isStale(s *BucketState) bool {
	last, _ := floorDivMod(s.absorbed.at, b.span())
	return s.ledger.Epoch-last >= 2 && (b.size > b.limit || !s.ledger.Settled)
}

// confirmed is the deficit without what the store doesn't know of yet.
func (b bucket) confirmed(s *BucketState) amount {
	base := s.deficit.floor()
	if unsent := s.ledger.Unsent(1); unsent < base.whole {
		base.whole -= unsent
		return base
	} else if unsent > 0 {
		return amount{}
	}
	return base
}

func (b bucket) isIdle(s *BucketState, now int64) bool {
	var past absorbed
	c := s.copied(&past)
	if b.advance(&c, now) > 0 {
		return false
	}
	if b.limit > 0 && c.deficit.floor() != (amount{}) {
		return false
	}
	epoch, _ := floorDivMod(now, b.span())
	own, _ := c.ledger.holds(epoch, 1)
	return !own
}

func (b bucket) shift(s *BucketState, now int64, by time.Duration) {
	s.last = addSat(s.last, int64(by))
	if s.absorbed != nil {
		s.absorbed.at = addSat(s.absorbed.at, int64(by))
	}
	epoch, _ := floorDivMod(now, b.span())
	s.ledger.Shift(nearest(int64(by), b.span()), epoch)
}

// roll brings the ledger to the epoch of now. What leaves it without having been sent is carried over to the current epoch, as
// far as it still stands in the bucket: what came later stands there first.
func (b bucket) roll(s *BucketState, now int64) {
	l := &s.ledger
	epoch, _ := floorDivMod(now, b.span())
	var left int64
	switch ahead := epoch - l.Epoch; {
	case ahead == 1:
		left = l.Prev.Unsent()
	case ahead > 1:
		left = l.Unsent(1)
	}
	l.Roll(epoch, 1)
	if left > 0 {
		stands := b.drained(s.deficit.floor(), now, s.last).ceil() - l.Unsent(1)
		l.Cur.Own = addSat(l.Cur.Own, min(left, max(0, stands)))
	}
}

// minSpan is the shortest epoch. The hashes of shorter ones would come and go faster than a cut-off node comes back.
const minSpan = int64(10 * time.Second)

// span is the length of an epoch. It depends on nothing but the window: nodes whose limits or bursts differ count into the same ones.
func (b bucket) span() int64 { return max(b.window, minSpan) }

func (b bucket) level(s *BucketState, now int64) float64 {
	var past absorbed
	c := s.copied(&past)
	b.advance(&c, now)
	level := c.deficit.floor()
	return float64(level.whole) + float64(level.frac)/float64(b.window)
}

func (b bucket) slack(s *BucketState, now int64) int64 {
	if s.absorbed == nil {
		return 0
	}
	var past absorbed
	c := s.copied(&past)
	b.advance(&c, now)
	return c.absorbed.idle.whole
}

// advance drains the bucket up to now, and returns by how much now is behind the state where it is late. After a step
// of the clock the deficit stays as it was and drains from there.
func (b bucket) advance(s *BucketState, now int64) (late int64) {
	if now <= s.last {
		if behind := since(s.last, now); behind <= uint64(lateness(b.window)) {
			return int64(behind)
		}
		s.last = now
		if s.absorbed != nil {
			s.absorbed.at = min(s.absorbed.at, now)
		}
		return 0
	}
	if s.absorbed != nil && s.last == s.absorbed.at {
		s.absorbed.idle, s.absorbed.theirs = amount{}, 0
	}
	level := s.deficit.floor()
	level.frac = min(level.frac, b.window-1)
	drained := b.drains(since(now, s.last))
	s.taught.drain(drained, b.window)
	s.last = now
	if level.less(drained) {
		if s.absorbed != nil {
			s.absorbed.idle = s.absorbed.idle.plus(drained.minus(level, b.window), b.window)
		}
		s.deficit = amount{}
		return 0
	}
	s.deficit = level.minus(drained, b.window)
	return 0
}

// spend adds n units of this node to the deficit and to the ledger.
func (b bucket) spend(s *BucketState, n int64) {
	if s.deficit.whole < 0 {
		s.deficit = amount{}
		if s.absorbed != nil {
			s.absorbed.idle, s.absorbed.theirs = amount{}, 0
		}
	}
	s.deficit.whole = addSat(s.deficit.whole, n)
	s.ledger.Cur.Own = addSat(s.ledger.Cur.Own, n)
}

// spread adds what the others spent since the last exchange. All that comes at one instant has the effect of its sum, in any
// order: the effect of what came before is taken back first.
//
// Where the store's fill is known, it bounds what is added: it has what still stood in the buckets of nodes that come back from
// being cut off, while the totals have all that they had admitted meanwhile, most of which has drained.
func (b bucket) spread(s *BucketState, theirs int64, level amount, bounded bool) {
	before := b.effect(s)
	s.absorbed.theirs = addSat(s.absorbed.theirs, theirs)
	added := b.effect(s).minus(before, b.window)
	if room := b.above(s, level); bounded && room.less(added) {
		added = room
		s.absorbed.idle, s.absorbed.theirs = amount{}, 0
	}
	s.deficit = s.deficit.plus(added, b.window)
}

// above is how far a level of now is above what was known at the last exchange, 0 where it isn't.
func (b bucket) above(s *BucketState, level amount) amount {
	if known := b.drained(s.absorbed.base, s.last, s.absorbed.at); known.less(level) {
		return level.minus(known, b.window)
	}
	return amount{}
}

// effect is what is left of theirs when the idle time has drained its part. What was given back has its full effect.
func (b bucket) effect(s *BucketState) amount {
	theirs := amount{whole: s.absorbed.theirs}
	switch {
	case s.absorbed.theirs < 0:
		return theirs
	case theirs.less(s.absorbed.idle):
		return amount{}
	}
	return theirs.minus(s.absorbed.idle, b.window)
}

// seen is the fill of the bucket now, as the store has it.
func (b bucket) seen(s *BucketState, reports []Report) (level amount, ok bool) {
	for _, r := range reports {
		if _, held := s.ledger.At(r.Epoch); !held || r.LevelAt <= 0 {
			continue
		}
		ok = true
		if now := b.drained(b.parse(r.Level), s.last, r.LevelAt); level.less(now) {
			level = now
		}
	}
	return level, ok
}

// adopt takes the level in the store for what this node knew at the last exchange, where it is higher. What this node has spent
// since comes on top.
func (b bucket) adopt(s *BucketState, level amount) {
	b.begin(s)
	s.deficit = s.deficit.plus(b.above(s, level), b.window)
}

// lump adds what the others spent where nobody knows when: at most to the brim, as they too had a bucket.
func (b bucket) lump(s *BucketState, theirs int64) {
	b.begin(s)
	if room := b.size - s.deficit.ceil(); room > 0 {
		s.deficit.whole += min(room, max(0, theirs))
	}
}

// begin forgets what came at this instant.
func (b bucket) begin(s *BucketState) {
	if s.absorbed == nil {
		s.absorbed = new(absorbed)
	}
	s.deficit, s.absorbed.idle, s.absorbed.theirs = s.deficit.floor(), amount{}, 0
}

// drains is how much drains in a time.
func (b bucket) drains(elapsed uint64) amount {
	hi, lo := bits.Mul64(uint64(b.limit), elapsed)
	if hi >= uint64(b.window) {
		return amount{whole: math.MaxInt64}
	}
	whole, frac := bits.Div64(hi, lo, uint64(b.window))
	if whole > math.MaxInt64 {
		return amount{whole: math.MaxInt64}
	}
	return amount{int64(whole), int64(frac)}
}

// drained is what is left at now of a level that stood then. Of a level of the future all is left.
func (b bucket) drained(level amount, now, then int64) amount {
	if now <= then {
		return level
	}
	out := b.drains(since(now, then))
	if level.less(out) {
		return amount{}
	}
	return level.minus(out, b.window)
}

// drainsTo is how many nanoseconds a deficit takes to drain to target, rounded up; the longest possible where that is longer.
func (b bucket) drainsTo(deficit amount, target int64) int64 {
	over := deficit.whole - target
	if over < 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(over), uint64(b.window))
	lo, carry := bits.Add64(lo, uint64(deficit.frac), 0)
	hi += carry
	if hi >= uint64(b.limit) {
		return math.MaxInt64
	}
	q, r := bits.Div64(hi, lo, uint64(b.limit))
	if r > 0 {
		q++
	}
	return int64(min(q, math.MaxInt64))
}

// parse reads a level that came from another node; what is no level is 0.
func (b bucket) parse(level float64) amount {
	if !(level > 0) {
		return amount{}
	}
	whole, frac := math.Modf(min(level, 1<<62))
	return amount{int64(whole), min(int64(frac*float64(b.window)), b.window-1)}
}

// floor is a, 0 where it is negative.
func (a amount) floor() amount {
	if a.whole < 0 {
		return amount{}
	}
	return a
}

// ceil is the next whole number from a on.
func (a amount) ceil() int64 {
	if a.frac > 0 {
		return addSat(a.whole, 1)
	}
	return a.whole
}

func (a amount) less(b amount) bool {
	return a.whole < b.whole || a.whole == b.whole && a.frac < b.frac
}

func (a amount) plus(b amount, window int64) amount {
	sum := amount{addSat(a.whole, b.whole), a.frac + b.frac}
	if sum.frac >= window {
		sum = amount{addSat(sum.whole, 1), sum.frac - window}
	}
	return sum
}

func (a amount) minus(b amount, window int64) amount {
	rest := amount{addSat(a.whole, -b.whole), a.frac - b.frac}
	if rest.frac < 0 {
		rest = amount{addSat(rest.whole, -1), rest.frac + window}
	}
	return rest
}

// wait is a time seen by a request that is late by some of it.
func wait(late, ns int64) time.Duration { return time.Duration(addSat(late, ns)) }
