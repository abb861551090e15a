// Package algorithms holds the decisions of the rate limiter: six algorithms, each a small value of parameters and a method set over
// one small state per key. Nothing here reads a clock, allocates for a decision it can make without, or knows of a network.
//
// Time is an argument: nanoseconds since the Unix epoch, as int64. It may step back; a step back never makes a client wait longer than
// one full window (for buckets: the time one takes to drain) from the stepped time on. Up to 100ms back, or an eighth of the window where that is less, is no step: it is a
// request that read its clock before another did, and it is served as if it came together with that one.
package algorithms

import "time"

// An Algorithm is the parameters of one limit (a value); S is what it remembers of one key. The zero S is a key never seen.
//
// An Algorithm is not changed by its methods and may be shared. A state belongs to one caller at a time: its owner locks.
// Parameters are passed to every call and never kept in a state, so a changed limit applies to what is already spent.
type Algorithm[S any] interface {
	// Take asks for n units (n >= 0) at the instant now. hidden (>= 0) is what others have probably spent that is not in s yet:
	// it is held against the request but never stored. A refused Take changes nothing but the bookkeeping of time.
	// n = 0 spends nothing and reports the state. An algorithm that is Brief doesn't work out NextAfter and ResetAfter where n units are
	// admitted, n >= 1: what is refused, and n = 0, tell the whole.
	Take(s *S, now, n, hidden int64) Decision

	// Charge spends n units without asking, as a penalty for a refused request. What it can make a client wait is bounded:
	// windows count it as spent, buckets fill at most to the brim, a log keeps at most limit entries.
	Charge(s *S, now, n int64)

	// Return gives back n units that a Take at the instant taken got. It is charged to the epoch of that instant.
	Return(s *S, taken, n int64)

	// Absorb takes in what the store knows of other nodes. It can't refuse, and within one instant the order of
	// reports, in one call or several, makes no difference. Of a key that is not settled, and with a Level, all epochs are
	// reported in one call.
	Absorb(s *S, now int64, reports []Report)

	// Idle reports that a zero S would decide the same from now on, and that no live epoch needs the totals in s.
	Idle(s *S, now int64) bool

	// Shift moves everything stored by a step of the clock, which says now since (whole epochs for windows), so that a clock set right neither
	// frees nor locks out anyone. The totals of the moved epochs count as not acknowledged. An epoch that has then not begun yet is put
	// into the one that has not ended.
	Shift(s *S, now int64, by time.Duration)

	// Ledger gives the totals that the exchange reads and settles. Roll first brings it to the epoch of now.
	Ledger(s *S) *Ledger
	Roll(s *S, now int64)

	// Span is the length of one epoch of s; Live is how many epochs before the current one a decision can still use.
	Span(s *S) time.Duration
	Live() int

	// Level is the fill of a bucket in requests at now, 0 for algorithms that have no bucket.
	Level(s *S, now int64) float64

	// Slack is what a bucket has drained while it was empty since the last Absorb, in whole requests: so much of what others have spent
	// since then has drained too. 0 for algorithms that have no bucket.
	Slack(s *S, now int64) int64

	// Rule returns the limit and the window of the parameters.
	Rule() (limit int64, window time.Duration)
}

// A Decision is the answer to one Take. Its zero value is a refusal that knows of no end.
type Decision struct {
	// Allowed says that the units were spent.
	Allowed bool
	// Estimated says that only hidden stood in the way: without it the request would have been admitted.
	Estimated bool
	// Limit is the configured number of requests per window.
	Limit int64
	// Remaining is how many units of cost 1 would be admitted at this instant, after this decision. Never negative.
	Remaining int64
	// RetryAfter is 0 where Allowed; else the shortest wait after which the same Take is admitted if nobody else takes anything.
	// A Take that can never be admitted (limit 0, a cost above what the limit can hold) gives the window.
	RetryAfter time.Duration
	// NextAfter is the wait until Remaining is one higher, 0 when nothing is spent.
	NextAfter time.Duration
	// ResetAfter is the wait until nothing that was spent counts any more.
	ResetAfter time.Duration
	// Delay is how long an admitted request must wait for its turn; only a leaky bucket sets it.
	Delay time.Duration
}

// A Report is what the store says of one epoch of one key.
type Report struct {
	// Epoch is the number of the epoch.
	Epoch int64
	// Elsewhere is the total of all nodes less the own one.
	Elsewhere int64
	// Level is the fill of a bucket as all nodes left it, at the instant LevelAt (nanoseconds); LevelAt 0 means there is none. A key
	// that was not exchanged lately adopts it; for others it bounds what Elsewhere adds.
	Level   float64
	LevelAt int64
	// Own is the part of Elsewhere that this node itself had admitted; only what a table saves has it.
	Own int64
}
