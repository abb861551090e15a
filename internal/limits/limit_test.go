package limits

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/config"
)

// Another number changes what may come at once where that follows the number, and nothing else. A
// share of it is rounded up, and of a limit of 0 is 0.
func TestALimitWithAnotherNumber(t *testing.T) {
	for _, test := range []struct {
		kind             algorithms.Kind
		burst, queue     int64
		n, size          int64
		shareN, shareOne int64 // of N and of Size, with three nodes
	}{
		{algorithms.SlidingWindow, 0, 0, 10, 10, 4, 4},
		{algorithms.SlidingLog, 0, 0, 1, 1, 1, 1},
		{algorithms.FixedWindow, 0, 0, 0, 0, 0, 0},
		{algorithms.TokenBucket, 0, 0, 1 << 53, 1 << 53, (1<<53 + 2) / 3, (1<<53 + 2) / 3},
		{algorithms.TokenBucket, 7, 0, 10, 7, 4, 3},
		{algorithms.GCRA, 1, 0, 10, 1, 4, 1},
		{algorithms.LeakyBucket, 0, 4, 10, 5, 4, 5},
	} {
		z := &config.Settings{Kind: test.kind, Burst: test.burst, Queue: test.queue}
		l := Limit{Settings: z, Rate: config.Rate{Limit: 60, Window: 30 * 24 * time.Hour, From: "{plan}"}}
		l.Effective = l.Params().Compile()
		before := l.Effective
		got := l.With(test.n)
		if l.Effective != before || l.Rate.Limit != 60 {
			t.Errorf("%v: with has changed the limit itself", test.kind)
		}
		if got.Effective.N != test.n || got.Effective.Size != test.size || got.Effective.Window != before.Window || got.Effective.History != before.History {
			t.Errorf("%v with %d: %+v, want a size of %d", test.kind, test.n, got.Effective, test.size)
		}
		thirds := []Limit{got}
		divideAll(thirds, division{1, 1, 3})
		got = thirds[0]
		if share := got.Effective; share.N != test.shareN || share.Size != test.shareOne {
			t.Errorf("%v: a third of %d is %+v, want %d of size %d", test.kind, test.n, share, test.shareN, test.shareOne)
		}
		if got.Rate.Limit != test.n {
			t.Errorf("%v: a share has changed what headers tell", test.kind)
		}
	}
}
