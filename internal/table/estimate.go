// What a node expects that the others have spent of a key and that it can't see yet, and when that
// makes a sync of the key urgent: arithmetic on what one key knows of its syncs.

package table

import (
	"math"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

const (
	// earlyPause is the least time between two early syncs of one key.
	earlyPause = 5 * time.Millisecond
	// earlyOfRemaining of what a key has left, by the estimate, that may be unsent before it is
	// synced early: one part of so many.
	earlyOfRemaining = 8
	// earlyOfLimit is the part of a limit, one of so many, below which what all nodes have unsent,
	// by the estimate, is worth no early sync. Without it a client at its limit would cause one for
	// each request that is admitted.
	earlyOfLimit = 64
	// earlyRefresh is how often in an interval a key at its limit may be synced only to learn what
	// the others did.
	earlyRefresh = 8
	// leastMine is how many units of this node the estimate of its share goes by at least, where
	// there were so many: what is older counts half as much with each sync. With fewer, chance
	// makes a node that sees little of a client take its share for a fraction of what it is.
	leastMine = 32
	// maxAllPerMine bounds the estimate of how much more than this node all nodes take in.
	maxAllPerMine = 1000
)

// An estimate is what a key knows of its syncs. The zero value is that of a key that had none.
type estimate struct {
	// At is the instant of the last reply, 0 never; where the store decides, that of the message.
	At             int64
	allPerMine     float32 // units spent on all nodes for each one here, lately; 0 unknown
	inHalfInterval float32 // admitted here in half an interval before that, or more: see Sent

	pastMine uint32 // spent here and
	pastAll  uint32 // on all nodes in the syncs before, the older ones less and less
}

// Retry is when to try again where only an estimate stands in the way: the next sync may
// tell that others spent less.
func (s *estimate) Retry(rate time.Duration, at int64, retry time.Duration) time.Duration {
	return max(time.Second, min(retry, rate-time.Duration(at-s.At)))
}

// NeedsSync reports whether a key should not wait for the next cycle: it was not synced
// lately, or what is unsent is much of what is left. So many regions may have as much unsent that
// none of them has told of.
func (s *estimate) NeedsSync(l *algorithms.Ledger, limit algorithms.Limit, remaining, at int64, regions int) bool {
	if !l.Synced {
		return true
	}
	if at-s.At < int64(earlyPause) {
		return false
	}
	if s.allPerMine == 0 {
		return true // the second sync shows this node's share
	}
	if limit.History > 0 && l.Attempts <= 1 && l.Prev.Unsent() > 0 {
		return true // the first request of an epoch: others may want what came just before it
	}
	unseen := float64(l.Unsent(limit.History)) * max(1, float64(s.allPerMine))
	return unseen > 0 && unseen*earlyOfRemaining*float64(max(1, regions)) >= float64(remaining) && unseen*earlyOfLimit >= float64(limit.AtOnce())
}

// NeedsRefresh reports whether a key is at its limit and so much may have flowed in since the last
// sync that others may have taken 1/earlyOfLimit of it. To ask is worth less than to report: where
// other keys of the stripe wait to be sent, this one waits as well.
func (s *estimate) NeedsRefresh(rate time.Duration, l algorithms.Limit, remaining, at int64) bool {
	size, passed := float64(l.AtOnce()), at-s.At
	if s.allPerMine <= 1 || passed < max(int64(rate/earlyRefresh), int64(earlyPause)) || float64(remaining)*earlyOfLimit > size {
		return false
	}
	return float64(passed)*float64(l.N)*earlyOfLimit >= size*float64(l.Window)
}

// nextPoll returns in how long the store should be asked about a key once more, 0 for not before
// the next cycle. passed is the time since the last answer but one. It is for keys of which units
// are reserved: no share is known of them, and others may be spending the units that are left.
// After news the next question comes soon. Otherwise the time between two grows by half each time.
// The only node that knows a key has nothing to ask. Where a unit is less than such a part of the
// limit, or many are left, it can wait.
func nextPoll(l *algorithms.Ledger, limit algorithms.Limit, rate time.Duration, remaining, passed int64, news bool) (after time.Duration) {
	unsent := l.Unsent(limit.History) > 0 // admitted while the answer was on its way
	_, remote := l.Sum(limit.History)
	if !unsent && (remaining <= 0 || remote == 0) || remaining > earlyOfRemaining || float64(limit.AtOnce()) > earlyOfLimit {
		return 0
	}
	if after = earlyPause; !news && !unsent {
		after = time.Duration(passed + passed/2)
	}
	if after >= rate {
		return 0
	}
	return after
}

// Unseen estimates what others have spent that this node can't see yet: for each unit of its own
// that it has not sent, and each that it sent while theirs were in flight, as many more as its
// share of what is spent makes likely.
func (s *estimate) Unseen(l *algorithms.Ledger, history int) int64 {
	if s.allPerMine <= 1 || !l.Synced {
		return 0
	}
	return int64(math.Ceil((float64(s.allPerMine) - 1) * (float64(l.Unsent(history)) + float64(s.inHalfInterval))))
}

// conclude works out allPerMine from what is noted.
func (s *estimate) conclude(lately bool) {
	switch {
	case s.pastMine > 0:
		s.allPerMine = float32(min(max(1, float64(s.pastAll)/float64(s.pastMine)), maxAllPerMine))
	case lately:
		s.allPerMine = 1
	}
	if s.pastMine > leastMine {
		s.pastMine, s.pastAll = s.pastMine/2, s.pastAll/2
	}
}

// noteSpent works out allPerMine from what was spent here and by the others since the answer
// before. Where there was none lately, what others did came over a longer time than what this node
// did, and doesn't show its share.
func (s *estimate) noteSpent(mine, theirs int64, lately bool) {
	if lately {
		s.pastMine = add32(s.pastMine, mine)
		s.pastAll = add32(s.pastAll, mine+theirs)
	} else {
		s.pastMine, s.pastAll, s.allPerMine = 0, 0, 0
	}
	s.conclude(lately)
}

// Alone notes that no share is known, and nothing is expected of others.
func (s *estimate) Alone() { s.allPerMine = 1 }

// Sent notes how many units the last sync sent, how long that took, and how much time has passed
// since the one before. What others say is on average half an interval old when it is read, so half
// of the units is what this node admits in that time, and allPerMine times that what all do. The
// farther away the store is, the more of the other half is added, as what others say is older by
// the way: the whole where that takes an interval. Nodes of such a store take what is left in turn,
// one denying while another admits, so half of what was noted before stays where that is more.
// Buckets drain in that time, and need none: of them the units are 0.
func (s *estimate) Sent(units int64, took, passed time.Duration) {
	half := units / 2
	if far := min(took-earlyPause, passed); far > 0 {
		part := float64(far) / float64(passed)
		half = max(half+int64(float64(half)*part), int64(float64(s.inHalfInterval)/2*part))
	}
	s.inHalfInterval = float32(half)
}

// add32 adds to a number that ends at its largest value.
func add32(a uint32, n int64) uint32 {
	return uint32(min(int64(a)+min(n, math.MaxUint32), math.MaxUint32))
}
