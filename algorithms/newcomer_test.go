package algorithms

import (
	"testing"
	"time"
)

func TestANewcomerHoldsAllSlicesOfOthers(t *testing.T) {
	k := keyOf[WindowState](Params{Kind: SlidingWindow, Limit: 100, Window: time.Minute, SubWindows: 6})
	now := epoch
	k.advance(now)
	e := k.ledger().Epoch
	for age := range int64(7) {
		k.merge(now, Report{Epoch: e - age, Remote: 10})
	}
	if got := k.take(now, 0, 0).Remaining; got < 30 || got > 40 {
		t.Errorf("six sub-windows of 10 remote and one that fades: %d remain, want 30 to 40", got)
	}
}
