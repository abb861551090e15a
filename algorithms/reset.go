package algorithms

import (
	"math"
	"time"
)

// Reset forgets the counts up to an epoch.
func (m *window) Reset(s *WindowState, l Limit, now, upTo int64) int64 {
	m.advance(s, l, now)
	return s.ledger.Reset(upTo)
}

// Reset empties the bucket, and begins with another state.
func (*bucket) Reset(s *BucketState, l Limit, now, _ int64) int64 {
	s.advance(l, now)
	had := s.deficit.floor().ceil()
	s.deficit = amount{}
	s.ledger = Ledger{Attempts: s.ledger.Attempts}
	if s.shared != nil {
		*s.shared = shared{start: max(now/int64(time.Microsecond), s.shared.start+1)}
	}
	return had
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
