package limits

import (
	"sync/atomic"
	"time"
)

// answerTimes are how long the last answers of a zone took on this node, in nanoseconds. Who finds
// only units that are reserved may come back when such an answer has ended. The zero value has
// none. It is safe for concurrent use.
type answerTimes struct {
	count atomic.Uint64
	took  [32]atomic.Int64
}

func (a *answerTimes) add(took int64) {
	a.took[(a.count.Add(1)-1)%uint64(len(a.took))].Store(max(1, took))
}

// mean returns the mean of them, 0 for none.
func (a *answerTimes) mean() time.Duration {
	sum, n := int64(0), int64(0)
	for i := range a.took {
		if took := a.took[i].Load(); took > 0 {
			sum, n = sum+min(took, int64(24*time.Hour)), n+1
		}
	}
	return time.Duration(sum / max(1, n))
}

// reservedWait is what a client is told that is denied as others have reserved what is left, whose
// responses may begin at any time. Where they settle as they end it is how long those take, and no
// more than the limit would have it wait.
func (z *Zone) reservedWait(wait time.Duration) time.Duration {
	if z.responseCost == nil {
		return time.Second
	}
	return max(time.Second, min(wait, z.responseCost.took.mean()))
}
