package scenario

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// A full bucket is still full for a process that starts after the boundary of an epoch, here one of
// 50 s, and full since the one before the last.
func TestABucketIsNotEmptyForANodeThatStartsAfterAnEdge(t *testing.T) {
	sc := Buckets{
		Algorithm: algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1000, Window: 50 * sec}, Model: Shipped, Rate: sec / 2, Nodes: 3, Latency: near,
		Load: Constant(60, 170*sec), Warm: 100 * sec, Restarts: []Restart{{0, 112 * sec, true}, {1, 131 * sec, true}},
	}
	within(t, "mean", sc.Run().Mean, .97, 1.03)
}

// A client that comes every 22 s is not settled when it comes, and the epoch before is final: what
// others spent in it still counts.
func TestALogRemembersOthersOfAClientThatPaused(t *testing.T) {
	sc := Logs{
		Algorithm: algorithms.Params{Kind: algorithms.SlidingLog, Limit: 60, Window: 60 * sec}, Model: Shipped, Rate: sec, Nodes: 3, Latency: near,
		Load: Bursts(200, sec, 21*sec, 20),
	}
	within(t, "peak", sc.Run().Peak, .97, 1.25)
}

// The estimate is of what others spent since the last sync, and a bucket drains in that time.
func TestABucketFarFromTheStoreAdmitsADemandBelowItsRate(t *testing.T) {
	for latency, least := range map[time.Duration]float64{10 * time.Millisecond: .95, 33 * time.Millisecond: .86, 66 * time.Millisecond: .80} {
		c := CaseOf("", Buckets{
			Algorithm: algorithms.Params{Kind: algorithms.TokenBucket, Limit: 100, Window: sec, Burst: 10}, Rate: sec / 2, Nodes: 3, Latency: latency,
			Load: Constant(80, 30*sec), Warm: 5 * sec,
		})
		within(t, "share admitted at 0.8x, "+(2*latency).String()+" from the store", c.Figures(Shipped, 2).Share, least, 1)
	}
	c := CaseOf("", Buckets{
		Algorithm: algorithms.Params{Kind: algorithms.TokenBucket, Limit: 100, Window: sec, Burst: 10}, Rate: sec / 2, Nodes: 3, Latency: near,
		Load: Constant(80, 30*sec), Warm: 5 * sec,
	})
	within(t, "share admitted at 0.8x without early syncs", c.Figures(Scaled, 2).Share, .97, 1)
}

// One lost reply is not a lost store: the estimate goes on.
func TestALostReplyCostsLittle(t *testing.T) {
	f := Faulty()[4].Figures(Shipped, 5)
	within(t, "mean with 1 of 200 replies lost", f.Mean, .98, 1.012)
	within(t, "peak", f.Peak, .98, 1.10)
}
