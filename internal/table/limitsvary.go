package table

import (
	"math"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// Where limits differ from request to request, most of what other nodes were asked for may have
// been denied, by a limit lower than that of the request at hand: it spent nothing. So the estimate
// of what they have spent reaches no further than the largest limit that was found used up here
// lately. If none was, and others have denied something or may have, the estimate is 0: they denied
// it while there was room, as far as is known here. A request whose own limit was found used up
// goes by the whole estimate.
//
// Until its limit is found used up, more than a node's share can pass. Early syncs bound that to
// what comes within a round trip. So without them the estimate holds as a whole, for all requests.

// bound returns the most of unseen units that may have been spent.
func (t *Table[S]) bound(b *SyncConfig, e entry[S], limit algorithms.Limit, at, unseen int64) int64 {
	largest := int64(e.usedUpAt(recentPeriod(b, at)))
	if limit.Size <= largest {
		return unseen
	}
	used := limit.Size - t.machine.Take(&e.state, limit, at, 0, 0).Remaining
	return min(unseen, max(0, largest-used))
}

// recentPeriod numbers the time: each number is for an interval and a second more, and where
// windows begin empty for a quarter of one as well, as it takes a flood that long to use it up.
// Only the lowest bits are kept.
func recentPeriod(b *SyncConfig, at int64) uint8 {
	each := int64(b.Interval + time.Second)
	if b.Params.Kind.Traits().Fixed {
		each += b.Limit.Window / 4
	}
	return uint8(at / each)
}

// noteUsedUp notes that a limit has denied a request and is used up as far as is known here: less
// than 1/earlyOfLimit of it is left.
func (t *Table[S]) noteUsedUp(b *SyncConfig, e entry[S], limit algorithms.Limit, d *Taken) {
	if d.Estimated && t.machine.Take(&e.state, limit, d.At, 0, 0).Remaining > limit.Size/earlyOfLimit {
		return
	}
	at := recentPeriod(b, d.At)
	if size := uint32(min(limit.Size, math.MaxUint32)); size >= e.usedUpAt(at) {
		e.usedUp, e.usedUpIn = size, at
	}
}

// usedUpAt returns the largest limit that was found used up at that time or the one before it, 0
// for none.
func (e entry[S]) usedUpAt(at uint8) uint32 {
	if at-e.usedUpIn > 1 {
		return 0
	}
	return e.usedUp
}
