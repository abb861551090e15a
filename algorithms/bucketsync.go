package algorithms

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// How a bucket is shared: a node says what it has spent in all, and how much of that the store may
// not have, and hears what is in the bucket of all nodes.

// A Bucketed is a machine with a bucket.
type Bucketed[S any] interface {
	// Update returns what is said of a bucket at now, where nodes sync every interval: 0 where what
	// is said asks for more, and ReadsOnly where nothing is said.
	Update(s *S, l Limit, now int64, interval time.Duration) BucketUpdate
	// MergeReply takes in an answer at now.
	MergeReply(s *S, l Limit, now int64, h BucketReply)
	// Begin gives a state its incarnation, a number from the clock under which the store adds up
	// what was spent in it, where it has none yet.
	Begin(s *S, now int64)
	// Restart gives it another one: the store has less than it had confirmed.
	Restart(s *S, now int64)
	// Added is what was ever added to the bucket, as far as is known.
	Added(s *S) int64
	// StateAt returns a bucket as an answer has it, before so many units that were granted last.
	StateAt(l Limit, now int64, level BucketLevel, behind int64) S
}

// A BucketUpdate is what a node says of a bucket.
type BucketUpdate struct {
	// Incarnation numbers the state, see Begin, Total is what was spent in it, and Unacked what of
	// that the store is not known to have, as far as it may still stand in the bucket.
	Incarnation, Total, Unacked int64
	// UnackedFor is how long ago the first unit of these was spent, in microseconds. Before the
	// first answer nobody has noted that, and all that is in the bucket is this node's own. So it
	// is then the time in which what no longer stands of Unacked has drained.
	UnackedFor int64
	// Whole and Rest are the level, in requests and parts of the window in microseconds; Size is
	// how much the bucket holds at least, and Rate what flows out in a window. Decided says that
	// this is the rate of a request since the last answer.
	Whole, Rest, Size, Rate int64
	Decided                 bool
	// Filled says that a penalty has filled the bucket since, with a part of a request.
	Filled bool
}

// A BucketLevel is what the store says is in a bucket: Whole, which may be below 0, and parts of
// the window in microseconds, at the instant At in nanoseconds. Rate flows out in a window.
type BucketLevel struct{ Whole, Rest, At, Rate int64 }

// A BucketReply is an answer.
type BucketReply struct {
	BucketLevel
	// Total is what of the node's total the store has, and Others what the others have spent in
	// all. Added is what was ever added.
	Total, Others, Added int64
	// ReadOnly is set where nothing was said with what it answers.
	ReadOnly bool
}

// ReadsOnly is the interval of what only asks for a bucket.
const ReadsOnly time.Duration = -1

// maxTotal is how far a total grows.
const maxTotal = 1 << 52

// Update works out what is said.
func (*bucket) Update(s *BucketState, l Limit, now int64, interval time.Duration) (b BucketUpdate) {
	s.advance(l, now)
	s.begin(now)
	c := &s.ledger.Cur
	if c.Own >= maxTotal && c.Own == c.Acked {
		s.restart(now)
	}
	if l = s.kept(l); interval == ReadsOnly {
		interval = 0
	} else {
		s.shared.later = 0
	}
	level := s.deficit.floor()
	b = BucketUpdate{Incarnation: s.shared.start, Total: c.Own, Rate: l.N, Decided: s.shared.decided, Filled: s.shared.filled, Size: max(l.Size, level.ceil())}
	b.Whole, b.Rest = level.whole, inMicroseconds(level.frac, l.Window)
	if b.Rest == l.Window/int64(time.Microsecond) {
		b.Whole, b.Rest = saturate.Add(b.Whole, 1), 0
	}
	if unsaid := c.Own - c.Acked; unsaid > 0 {
		since := max(0, min(s.last-s.shared.first, 2*int64(interval)))
		b.UnackedFor = since / int64(time.Microsecond)
		flowed := l.drains(uint64(2 * interval)).whole
		b.Unacked = min(unsaid, level.plus(amount{whole: flowed}, l.Window).ceil())
		if !s.shared.answered && l.N > 0 {
			gone := amount{whole: b.Unacked}.minus(level, l.Window)
			b.UnackedFor = l.drainsTo(gone, 0) / int64(time.Microsecond)
		}
	}
	return b
}

// Begin names a state that has no name yet.
func (*bucket) Begin(s *BucketState, now int64) { s.begin(now) }

func (s *BucketState) begin(now int64) {
	if s.shared == nil {
		s.shared = &shared{first: s.last, decided: s.rate > 0}
		s.restart(now)
	}
}

// inMicroseconds is parts of a window in microseconds, rounded up.
func inMicroseconds(frac, window int64) int64 {
	return mulDivUp(frac, max(1, window/int64(time.Microsecond)), window)
}

// restart names the state again. What the store was known to have counts no more.
func (s *BucketState) restart(now int64) {
	c := &s.ledger.Cur
	unsaid := max(0, c.Own-c.Acked)
	s.shared.former = saturate.Add(s.shared.former, c.Own-unsaid)
	c.Own, c.Acked = unsaid, 0
	s.shared.start = max(now/int64(time.Microsecond), s.shared.start+1)
}

// Restart names the state again.
func (*bucket) Restart(s *BucketState, now int64) {
	if s.shared != nil {
		s.restart(now)
	}
}

// MergeReply takes in an answer: what is in the bucket is what the store says, and what this node
// has spent since it was asked.
func (*bucket) MergeReply(s *BucketState, l Limit, now int64, h BucketReply) {
	s.advance(l, now)
	if s.shared == nil {
		s.shared = new(shared)
	}
	s.shared.answered = true
	c := &s.ledger.Cur
	unsaid := c.Own - h.Total
	if h.ReadOnly && h.Total <= c.Acked { // the store has nothing of what was said last
		s.shared.later = s.shared.first
	}
	if h.Rate > 0 && (unsaid == 0 || s.rate == 0) { // the last request anywhere has told it
		s.rate, s.shared.decided = h.Rate, false
	}
	s.shared.added = saturate.Add(h.Added, max(0, unsaid))
	c.Acked, c.Remote = h.Total, h.Others
	s.shared.filled = s.shared.filled && unsaid > 0
	s.ledger.Synced = true
	level := h.at(l, s.last)
	s.shared.idle = amount{}
	if level.whole < 0 { // what was spent since has drained as far as the bucket was idle meanwhile
		s.shared.idle = (amount{}).minus(level, l.Window)
		level = amount{}
		if s.shared.later != 0 && unsaid > 0 {
			drained := s.kept(l).drains(since(s.last, min(s.last, s.shared.later)))
			if s.shared.idle.less(drained) {
				drained = s.shared.idle
			}
			level, s.shared.idle = level.minus(drained, l.Window), s.shared.idle.minus(drained, l.Window)
		}
	}
	s.deficit = level.plus(amount{whole: unsaid}, l.Window).floor()
	if full := (amount{whole: l.Size}); s.shared.filled && full.less(s.deficit) {
		// The total counts a whole request for the part of one that a penalty has filled up.
		if s.deficit.whole--; s.deficit.less(full) {
			s.deficit = full
		}
	}
	if s.shared.first = s.shared.later; unsaid <= 0 {
		s.shared.first, s.shared.later = 0, 0
	}
}

// at is what of a level is left at an instant, with its sign.
func (h BucketLevel) at(l Limit, now int64) amount {
	parts := max(1, l.Window/int64(time.Microsecond))
	level := amount{h.Whole, min(mulDivUp(min(max(0, h.Rest), parts), l.Window, parts), l.Window-1)}
	if h.Rate > 0 {
		l.N = h.Rate
	}
	if now <= h.At {
		return level
	}
	return level.minus(l.drains(since(now, h.At)), l.Window)
}

// Added is what was ever added.
func (*bucket) Added(s *BucketState) int64 {
	if s.shared == nil {
		return 0
	}
	return s.shared.added
}

// StateAt returns a bucket as an answer has it.
func (*bucket) StateAt(l Limit, now int64, level BucketLevel, behind int64) BucketState {
	s := BucketState{last: now, rate: level.Rate, deficit: level.at(l, now)}
	s.deficit.whole = saturate.Add(s.deficit.whole, -behind)
	s.deficit = s.deficit.floor()
	return s
}
