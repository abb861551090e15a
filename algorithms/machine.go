package algorithms

import (
	"time"
)

// A Machine decides for one state and keeps it in step with other nodes. s is the state of a key, l
// its limit.
type Machine[S any] interface {
	// Take asks for n units (n >= 0) at the instant now. unseen (>= 0) is what others have
	// probably spent that is not in s yet: it is held against the request, less what the bucket
	// has drained since the last Merge while it was empty, and never stored. A denied Take changes
	// nothing but the bookkeeping of time. n = 0 spends nothing and tells how the limit stands.
	Take(s *S, l Limit, now, n, unseen int64) Result

	// Waits works out how long to wait, as of now and after a Take of the same arguments.
	Waits(s *S, l Limit, now, n, unseen int64, want Want) Waits

	// Refund returns n units that a Take at the instant taken got, to the epoch of that instant.
	Refund(s *S, l Limit, taken, n int64)

	// Penalize spends n units without asking, as a penalty for a denied request. What it can make
	// a client wait is bounded: windows count it as spent, buckets fill up at most, a log
	// keeps at most N entries.
	Penalize(s *S, l Limit, now, n int64)

	// Charge spends n units without asking, as a request that was admitted has cost so much more
	// than it took. They count from now on, in full: windows and logs hold them up to 2^52, and
	// buckets up to what drains in one window beyond their size. So a key waits for two windows at
	// most, or in a bucket for one more than a full one takes to drain.
	Charge(s *S, l Limit, now, n int64)

	// What follows is for the sync and the sweep.

	// Ledger returns the totals that are sent and acknowledged. Advance first brings them to the
	// epoch of now.
	Ledger(s *S) *Ledger
	Advance(s *S, l Limit, now int64)

	// Merge takes in what the store knows of other nodes. It can't deny, and within one instant the
	// order of reports, in one call or several, makes no difference. Where the ledger is not
	// Synced, and with a Level, all epochs are reported in one call.
	Merge(s *S, l Limit, now int64, reports []Report)

	// Adopt counts n units in an epoch as those of this node, which it has not decided on: a store
	// has granted them, or an earlier process had.
	Adopt(s *S, l Limit, epoch, n int64)

	// Spent returns what counts at now: of this node, and of the others.
	Spent(s *S, l Limit, now int64) (own, remote int64)

	// Shift moves everything stored by a step of the clock, which says now since (whole epochs for
	// windows), so that a clock set right neither frees nor locks out anyone. The totals of the
	// moved epochs count as not acknowledged. An epoch that has then not begun yet is put into the
	// one that has not ended.
	Shift(s *S, l Limit, now int64, by time.Duration)

	// Level returns the fill of a bucket in requests at now, and how many drain from it in a
	// Window; 0 for machines without a bucket.
	Level(s *S, l Limit, now int64) (level float64, rate int64)

	// Idle reports whether a zero S would decide the same from now on, and no epoch that counts
	// needs the totals in s.
	Idle(s *S, l Limit, now int64) bool

	// Reset forgets what was spent in the epochs up to one, on this node and the others, and keeps
	// what came in later ones. It returns what is forgiven, as far as it still counted at now.
	Reset(s *S, l Limit, now, upTo int64) (forgiven int64)

	// Clone returns a copy that shares nothing with s, so that what is done to one doesn't change
	// the other.
	Clone(s *S) S
}

// MachineBy is MachineOf where windows go by a calendar, unless that is nil.
func MachineBy[S any](k Kind, c *Calendar) Machine[S] {
	if c == nil {
		return MachineOf[S](k)
	}
	return any(&calendarWindow{window{c}}).(Machine[S])
}

// MachineOf returns the machine of a kind. It panics where S is not the kind's state; see ByState.
func MachineOf[S any](k Kind) Machine[S] {
	m, ok := traits[k].machine.(Machine[S])
	if !ok {
		panic("algorithms: " + k.String() + " has another type of state")
	}
	return m
}

// A Result is the answer to one Take. Its zero value is a denial.
type Result struct {
	// Remaining is how many units of cost 1 would be admitted at this instant, after this Take.
	// Never negative.
	Remaining int64
	// Delay is how long an admitted request must wait; only a leaky bucket sets it.
	Delay time.Duration
	// Allowed reports that the units were spent.
	Allowed bool
	// Estimated reports that only unseen units stood in the way: without them the request would
	// have been admitted.
	Estimated bool
}

// Waits are times until a limit has more room. One that was not asked for is 0.
type Waits struct {
	// Retry is 0 where n units were admitted; else the shortest wait after which the same Take is
	// admitted if nobody else takes anything. Where Estimated, it is that wait with unseen units
	// counted as spent now. A Take that can never be admitted (N 0, a cost above Size) gives the
	// window.
	Retry time.Duration
	// Next is the wait until Remaining is one higher, 0 when nothing is spent.
	Next time.Duration
	// Reset is the wait until nothing that was spent counts any more.
	Reset time.Duration
}

// A Decision is a Result with the waits that were asked for.
type Decision struct {
	Result
	Waits
}

// Want is a set of waits to work out.
type Want uint8

const (
	// WantRetry asks for Retry. It is for a Take that was denied: what it got counts as spent.
	WantRetry Want = 1 << iota
	// WantNext asks for Next.
	WantNext
	// WantReset asks for Reset.
	WantReset
)

// A Report is what the store says of one epoch of one key.
type Report struct {
	// Epoch is the number of the epoch.
	Epoch int64
	// Remote is the total of all nodes less the own one.
	Remote int64
	// Level is the fill of a bucket as all nodes left it, at the instant LevelAt (nanoseconds);
	// LevelAt 0 means there is none. A key that was not synced lately takes it over; for others it
	// bounds what Remote adds.
	Level   float64
	LevelAt int64
	// Rate is how many drain from that bucket in a Window, 0 where that is not known.
	Rate int64
	// Own is the part of Remote that this node itself had admitted; only what a table saves has
	// it.
	Own int64
}

// decide decides n units against a size of which used is taken: known counts first, then what is
// only unseen. n, used and unseen are not negative.
func decide(size, used, n, unseen int64) (r Result) {
	room := size - used
	if n <= room {
		r.Allowed = n <= room-unseen
		r.Estimated = !r.Allowed
	}
	if r.Allowed {
		room -= n
	}
	r.Remaining = max(0, max(0, room)-unseen)
	return r
}

// AtOnce is how many units a key that was never seen may spend at once: none where the limit is
// closed.
func (l Limit) AtOnce() int64 {
	if l.N == 0 {
		return 0
	}
	return l.Size
}

// closed returns what a limit of 0 says, whatever the kind: nothing is ever admitted, so nothing
// is ever reset.
func (l Limit) closed(n int64, want Want) (r Result, w Waits) {
	if r.Allowed = n == 0; !r.Allowed && want&WantRetry != 0 {
		w.Retry = time.Duration(l.Window)
	}
	return r, w
}
