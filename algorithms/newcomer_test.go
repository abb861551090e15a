package algorithms

import (
	"testing"
	"time"
)

func TestANewcomerHoldsAllSlicesOfOthers(t *testing.T) {
	alg, s := SlidingWindow{Limit: 100, Window: time.Minute, Buckets: 6}, WindowState{}
	now := epoch
	alg.Roll(&s, now)
	e := alg.Ledger(&s).Epoch
	for age := range int64(7) {
		alg.Absorb(&s, now, []Report{{Epoch: e - age, Elsewhere: 10}})
	}
	if got := alg.Take(&s, now, 0, 0).Remaining; got < 30 || got > 40 {
		t.Errorf("six slices of 10 elsewhere and one that fades: %d remain, want 30 to 40", got)
	}
}
