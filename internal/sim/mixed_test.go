package sim

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// Clients with limits far apart get of them what they get alone.
func TestLimitsOfOneZoneDontTouchEachOther(t *testing.T) {
	of := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 60, Window: time.Minute}
	got, exact := Mixed[algorithms.WindowState](of, []Client{{5, 5}, {5000, 1.6}}, 3, time.Second, 1)
	within(t, "5/1m: peak beyond the centralized limiter's", got[0].Peak-exact[0].Peak, -.2, 3.0/5+.2)
	within(t, "5/1m: mean", got[0].Mean, exact[0].Mean-.05, 1.6)
	within(t, "5000/1m: peak beyond the centralized limiter's", got[1].Peak-exact[1].Peak, -.02, .02)
	within(t, "5000/1m: mean", got[1].Mean, .98, 1.02)
}

// What nodes sync of a bucket drains at the limit of the requests that they decided, however high
// the one is that work without a request has: 60 a minute, and one bucket of 60.
func TestSyncedBucketsDrainAtTheLimitInForce(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA, algorithms.LeakyBucket} {
		of := algorithms.Params{Kind: kind, Limit: 600_000, Window: time.Minute, Burst: 60, Queue: 59}
		for seed := range uint64(3) {
			got, exact := Mixed[algorithms.BucketState](of, []Client{{60, 5}}, 3, time.Second, seed)
			within(t, kind.String()+": peak beyond the centralized limiter's", got[0].Peak-exact[0].Peak, -.1, .1)
			within(t, kind.String()+": mean", got[0].Mean, .97, 1.05)
		}
	}
}
