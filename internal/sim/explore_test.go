package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

func row[S any](name string, sc Scenario[S]) {
	line := fmt.Sprintf("%-46s", name)
	stats := func(run func(Scenario[S]) Result) string {
		var peak, worst, mean, share, est, calls float64
		for seed := range 5 {
			sc.Seed = uint64(seed)
			r := run(sc)
			peak += r.Peak / 5
			mean += r.Mean / 5
			share += r.Share() / 5
			est += float64(r.Estimated) / float64(r.Requests) / 5
			calls += r.Calls / 5
			worst = max(worst, r.Peak)
		}
		return fmt.Sprintf(" | %.2f(%.2f)/%.2f sh%.3f e%.3f %3.0f", peak, worst, mean, share, est, calls)
	}
	line += stats(Scenario[S].Exact)
	for _, model := range []Model{Kong, Scaled, Shipped} {
		sc.Model = model
		line += stats(Scenario[S].Run)
	}
	fmt.Println(line)
}

func TestExplore(t *testing.T) {
	type bs = Scenario[algorithms.BucketState]
	type ls = Scenario[algorithms.LogState]
	lat := sec / 2000
	for _, x := range []float64{.5, .8, .95, 1.6, 5} {
		row(fmt.Sprintf("token 100/s b10 3 nodes sync .5 x%v", x), bs{Algorithm: algorithms.TokenBucket{Limit: 100, Window: sec, Burst: 10}, Rate: sec / 2, Nodes: 3, Latency: lat, Load: Constant(100*x, 30*sec), Warm: 5 * sec})
	}
	for _, x := range []float64{.8, 1.6, 5} {
		row(fmt.Sprintf("token 100/s b100 3 nodes sync .5 x%v", x), bs{Algorithm: algorithms.TokenBucket{Limit: 100, Window: sec, Burst: 100}, Rate: sec / 2, Nodes: 3, Latency: lat, Load: Constant(100*x, 30*sec), Warm: 5 * sec})
		row(fmt.Sprintf("token 600/m b100 5 nodes sync 1 x%v", x), bs{Algorithm: algorithms.TokenBucket{Limit: 600, Window: 60 * sec, Burst: 100}, Rate: sec, Nodes: 5, Latency: lat, Load: Constant(10*x, 400*sec), Warm: 60 * sec})
		row(fmt.Sprintf("gcra 100/s b1 3 nodes sync .5 x%v", x), bs{Algorithm: algorithms.GCRA{Limit: 100, Window: sec, Burst: 1}, Rate: sec / 2, Nodes: 3, Latency: lat, Load: Constant(100*x, 30*sec), Warm: 5 * sec})
		row(fmt.Sprintf("leaky 100/s q20 3 nodes sync .5 x%v", x), bs{Algorithm: algorithms.LeakyBucket{Limit: 100, Window: sec, Queue: 20}, Rate: sec / 2, Nodes: 3, Latency: lat, Load: Constant(100*x, 30*sec), Warm: 5 * sec})
		row(fmt.Sprintf("log 100/10s 3 nodes sync 1 x%v", x), ls{Algorithm: algorithms.SlidingLog{Limit: 100, Window: 10 * sec}, Rate: sec, Nodes: 3, Latency: lat, Load: Constant(10*x, 100*sec), Warm: 20 * sec})
		row(fmt.Sprintf("log 1000/10s 10 nodes sync 1 x%v", x), ls{Algorithm: algorithms.SlidingLog{Limit: 1000, Window: 10 * sec}, Rate: sec, Nodes: 10, Latency: lat, Load: Constant(100*x, 60*sec), Warm: 20 * sec})
		row(fmt.Sprintf("fixed 1000/5s 10 nodes sync .5 x%v", x), windowed{Algorithm: algorithms.FixedWindow{Limit: 1000, Window: 5 * sec}, Rate: sec / 2, Nodes: 10, Latency: lat, Load: Constant(200*x, 40*sec), Warm: 10 * sec})
		row(fmt.Sprintf("sliding 4b 1000/5s 10 nodes sync .5 x%v", x), windowed{Algorithm: algorithms.SlidingWindow{Limit: 1000, Window: 5 * sec, Buckets: 4}, Rate: sec / 2, Nodes: 10, Latency: lat, Load: Constant(200*x, 40*sec), Warm: 10 * sec})
		row(fmt.Sprintf("sliding 100/1m 3 nodes sync 1 x%v", x), windowed{Algorithm: sliding(100, 60*sec), Rate: sec, Nodes: 3, Latency: lat, Load: Constant(100./60*x, 600*sec), Warm: 120 * sec})
		row(fmt.Sprintf("sliding 10/1s 3 nodes sync 1 x%v", x), windowed{Algorithm: sliding(10, sec), Rate: sec, Nodes: 3, Latency: lat, Load: Constant(10*x, 60*sec), Warm: 5 * sec})
		row(fmt.Sprintf("90/10 1000/5s sync .5 x%v", x), windowed{Algorithm: sliding(1000, 5*sec), Rate: sec / 2, Nodes: 2, Weights: []float64{.9, .1}, Latency: lat, Load: Constant(200*x, 40*sec), Warm: 10 * sec})
		row(fmt.Sprintf("lat 20ms 1000/5s 10 nodes sync .5 x%v", x), windowed{Algorithm: sliding(1000, 5*sec), Rate: sec / 2, Nodes: 10, Latency: 20 * time.Millisecond, Load: Constant(200*x, 40*sec), Warm: 10 * sec})
	}
	row("one node .97x even", windowed{Algorithm: sliding(1000, 5*sec), Rate: sec / 2, Nodes: 3, Weights: []float64{1, 0, 0}, Even: true, Latency: lat, Load: Constant(194, 60*sec), Warm: 10 * sec})
	row("lat 20ms step 20x from nothing", windowed{Algorithm: sliding(1000, 10*sec), Rate: sec, Nodes: 10, Latency: 20 * time.Millisecond, Load: Load{{15 * sec, 0}, {35 * sec, 2000}}, Warm: 15 * sec})
	row("100 nodes step 20x from nothing", windowed{Algorithm: sliding(1000, 10*sec), Rate: sec, Nodes: 100, Latency: lat, Load: Load{{15 * sec, 0}, {35 * sec, 2000}}, Warm: 15 * sec})
	row("100/1m new client 50/s 3 nodes", windowed{Algorithm: sliding(100, 60*sec), Rate: sec, Nodes: 3, Latency: lat, Load: Load{{30 * sec, 0}, {100 * sec, 50}}, Warm: 15 * sec})
	row("10/1m new client 50/s 3 nodes", windowed{Algorithm: sliding(10, 60*sec), Rate: sec, Nodes: 3, Latency: lat, Load: Load{{30 * sec, 0}, {100 * sec, 50}}, Warm: 15 * sec})
	row("10/1m new client 50/s 10 nodes aligned", windowed{Algorithm: sliding(10, 60*sec), Rate: sec, Nodes: 10, Latency: lat, Load: Load{{40 * sec, 0}, {59 * sec, 50}}, Warm: 15 * sec})
	row("cut", windowed{Algorithm: sliding(1000, 5*sec), Rate: sec / 2, Nodes: 3, Latency: lat, Load: Constant(300, 60*sec), Warm: 10 * sec, Cuts: []Cut{{0, 20 * sec, 35 * sec}}})
	row("skew 30s", windowed{Algorithm: sliding(1000, 5*sec), Rate: sec / 2, Nodes: 3, Latency: lat, Load: Constant(300, 60*sec), Warm: 10 * sec, Skew: []time.Duration{-30 * sec, 0, 17 * sec}})
	row("lost+dup", windowed{Algorithm: sliding(1000, 5*sec), Rate: sec / 2, Nodes: 3, Latency: lat, Load: Constant(300, 60*sec), Warm: 10 * sec, LostReplies: .05, Duplicates: .2})
	row("restarts crash", windowed{Algorithm: sliding(1000, 5*sec), Rate: sec / 2, Nodes: 3, Latency: lat, Load: Constant(300, 60*sec), Warm: 10 * sec, Restarts: []Restart{{0, 20 * sec, false}, {1, 31 * sec, false}}})
	row("restarts clean", windowed{Algorithm: sliding(1000, 5*sec), Rate: sec / 2, Nodes: 3, Latency: lat, Load: Constant(300, 60*sec), Warm: 10 * sec, Restarts: []Restart{{0, 20 * sec, true}, {1, 31 * sec, true}}})
	row("restarts clean token", bs{Algorithm: algorithms.TokenBucket{Limit: 1000, Window: 50 * sec}, Rate: sec / 2, Nodes: 3, Latency: lat, Load: Constant(60, 120*sec), Warm: 60 * sec, Restarts: []Restart{{0, 62 * sec, true}, {1, 81 * sec, true}}})
}
