package algorithms

import (
	"math"
)

// A Resetter forgives what a key has spent.
type Resetter[S any] interface {
	// Reset forgets what was spent in the epochs up to one, on this node and the others, and keeps
	// what came in later ones. It returns what is forgiven, as far as it still counted at now.
	Reset(s *S, l Limit, now, upTo int64) (forgiven int64)
}

// Reset forgets the counts up to an epoch.
func (*window) Reset(s *WindowState, l Limit, now, upTo int64) int64 {
	epochsOf(l).advance(&s.ledger, now)
	return s.ledger.Reset(upTo)
}

// Reset leaves at most what later epochs hold in the bucket. What was not sent of earlier ones is
// not carried over to later ones: the ledger comes first.
func (*bucket) Reset(s *BucketState, l Limit, now, upTo int64) int64 {
	s.advance(l, now)
	s.ledger.Reset(upTo)
	s.advanceLedger(l, now)
	had := s.deficit.floor()
	later, _ := s.ledger.Held()
	if left := (amount{whole: later}); left.less(had) {
		s.deficit = left
	}
	s.imported = nil
	switch {
	case later == 0:
		s.merged = nil
	case s.merged != nil:
		*s.merged = merged{at: s.last, base: s.confirmed()}
		// The store's fill has begun again, and lacks what it was told of later epochs.
		s.ledger.Resend |= Forgotten
	}
	return max(0, had.ceil()-s.deficit.floor().ceil())
}

// Reset drops what was spent up to the end of an epoch.
func (*log) Reset(s *LogState, l Limit, now, upTo int64) int64 {
	s.advance(now, l.Window)
	had := s.used()
	s.ledger.Reset(upTo)
	for s.head < len(s.hits) {
		if epoch, _ := floorDivMod(s.hits[s.head], sixteenthOf(l.Window)); epoch > upTo {
			break
		}
		s.takeOut(s.head, math.MaxInt64)
	}
	s.shrink()
	return max(0, had-s.used())
}
