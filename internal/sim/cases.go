package sim

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

const (
	sec = time.Second
	// near is a store in the same rack.
	near = 500 * time.Microsecond
)

type (
	windows = Scenario[algorithms.WindowState]
	buckets = Scenario[algorithms.BucketState]
	logs    = Scenario[algorithms.LogState]
)

// A testCase is a scenario of any algorithm.
type testCase struct {
	name  string
	run   func(m Model, seed uint64) Result
	exact func(seed uint64) Result
}

func caseOf[S any](name string, sc Scenario[S]) testCase {
	return testCase{name,
		func(m Model, seed uint64) Result { sc.Model, sc.Seed = m, seed; return sc.Run() },
		func(seed uint64) Result { sc.Seed = seed; return sc.Exact() },
	}
}

// A figure is what several runs give: the mean of each, and the highest of the peaks.
type figure struct{ peak, worst, mean, share, estimated, calls float64 }

func (c testCase) figure(m Model, seeds int) figure {
	return figureOf(seeds, func(seed uint64) Result { return c.run(m, seed) })
}

func (c testCase) ideal(seeds int) figure { return figureOf(seeds, c.exact) }

func figureOf(seeds int, run func(seed uint64) Result) (f figure) {
	n := float64(seeds)
	for seed := range seeds {
		r := run(uint64(seed))
		f.peak += r.Peak / n
		f.mean += r.Mean / n
		f.share += r.Share() / n
		f.estimated += float64(r.Estimated) / float64(max(1, r.Requests)) / n
		f.calls += r.Calls / n
		f.worst = max(f.worst, r.Peak)
	}
	return f
}

func sliding(limit int64, window time.Duration) algorithms.SlidingWindow {
	return algorithms.SlidingWindow{Limit: limit, Window: window, Buckets: 1}
}

// common are the scenarios that other limiters are compared by: many nodes, a client above its limit.
func common() []testCase {
	step := func(before float64) Load { return Load{{15 * sec, before}, {35 * sec, 2000}} }
	steady := windows{Algorithm: sliding(1000, 5*sec), Rate: sec / 2, Nodes: 10, Latency: near, Warm: 10 * sec}
	with := func(l Load) windows { sc := steady; sc.Load = l; return sc }
	surge := func(l Load) windows {
		return windows{Algorithm: sliding(1000, 10*sec), Rate: sec, Nodes: 10, Latency: near, Warm: 15 * sec, Load: l}
	}
	return []testCase{
		caseOf("10 nodes, 1000/5s, sync 0.5s, demand 1.6x", with(Constant(320, 40*sec))),
		caseOf("same, demand 5x", with(Constant(1000, 40*sec))),
		caseOf("2 nodes, 500/1s, sync 0.2s, demand 1.6x", windows{
			Algorithm: sliding(500, sec), Rate: sec / 5, Nodes: 2, Latency: near, Warm: 3 * sec, Load: Constant(800, 20*sec),
		}),
		caseOf("10 nodes, 1000/10s, sync 1s, step from nothing to 20x", surge(step(0))),
		caseOf("same, step from 0.05x to 20x", surge(step(5))),
		caseOf("same, step from 0.8x to 20x", surge(step(80))),
	}
}

// kinds are all algorithms under one load, as a multiple of the limit of 1000/10s. Buckets hold 100.
func kinds(nodes int, demand float64) []testCase {
	load := Constant(100*demand, 60*sec)
	window := func(name string, alg algorithms.Algorithm[algorithms.WindowState]) testCase {
		return caseOf(name, windows{Algorithm: alg, Rate: sec, Nodes: nodes, Latency: near, Warm: 20 * sec, Load: load})
	}
	bucket := func(name string, alg algorithms.Algorithm[algorithms.BucketState]) testCase {
		return caseOf(name, buckets{Algorithm: alg, Rate: sec, Nodes: nodes, Latency: near, Warm: 20 * sec, Load: load})
	}
	const limit, span = 1000, 10 * sec
	return []testCase{
		window("fixed_window", algorithms.FixedWindow{Limit: limit, Window: span}),
		window("sliding_window", sliding(limit, span)),
		window("sliding_window, buckets 4", algorithms.SlidingWindow{Limit: limit, Window: span, Buckets: 4}),
		caseOf("sliding_log", logs{
			Algorithm: algorithms.SlidingLog{Limit: limit, Window: span}, Rate: sec, Nodes: nodes, Latency: near, Warm: 20 * sec, Load: load,
		}),
		bucket("token_bucket, burst 100", algorithms.TokenBucket{Limit: limit, Window: span, Burst: 100}),
		bucket("gcra, burst 10", algorithms.GCRA{Limit: limit, Window: span, Burst: 10}),
		bucket("leaky_bucket, queue 20", algorithms.LeakyBucket{Limit: limit, Window: span, Queue: 20}),
	}
}

// small are limits of few requests, met by a client that was not there before.
func small() (cases []testCase) {
	newcomer := func(name string, limit int64, nodes int, rate float64) {
		cases = append(cases, caseOf(name, windows{
			Algorithm: sliding(limit, 60*sec), Rate: sec, Nodes: nodes, Latency: near, Load: Constant(rate, 59*sec),
		}))
	}
	newcomer("10/1m, 3 nodes, 50/s", 10, 3, 50)
	newcomer("10/1m, 3 nodes, 1/s", 10, 3, 1)
	newcomer("10/1m, 10 nodes, 50/s", 10, 10, 50)
	newcomer("100/1m, 3 nodes, 50/s", 100, 3, 50)
	newcomer("100/1m, 10 nodes, 50/s", 100, 10, 50)
	newcomer("100/1m, 10 nodes, 5/s", 100, 10, 5)
	return cases
}

// distant are stores further away: three nodes at 1.6 and 0.8 of the limit.
func distant(demand float64, latency time.Duration) []testCase {
	return []testCase{
		caseOf("sliding_window 1000/10s", windows{
			Algorithm: sliding(1000, 10*sec), Rate: sec, Nodes: 3, Latency: latency, Warm: 20 * sec, Load: Constant(100*demand, 60*sec),
		}),
		caseOf("token_bucket 1000/10s, burst 10", buckets{
			Algorithm: algorithms.TokenBucket{Limit: 1000, Window: 10 * sec, Burst: 10}, Rate: sec, Nodes: 3, Latency: latency,
			Warm: 20 * sec, Load: Constant(100*demand, 60*sec),
		}),
	}
}

// faulty is 3 nodes at 1.5 times the limit of 1000/5s, with something that goes wrong.
func faulty() []testCase {
	base := windows{Algorithm: sliding(1000, 5*sec), Rate: sec / 2, Nodes: 3, Latency: near, Warm: 10 * sec, Load: Constant(300, 60*sec)}
	with := func(name string, change func(*windows)) testCase {
		sc := base
		change(&sc)
		return caseOf(name, sc)
	}
	return []testCase{
		with("nothing goes wrong", func(*windows) {}),
		with("clocks 30 s slow, right, 17 s fast", func(sc *windows) { sc.Skew = []time.Duration{-30 * sec, 0, 17 * sec} }),
		with("90 % of the requests on one node", func(sc *windows) { sc.Weights = []float64{.9, .1, 0} }),
		with("1 of 200 replies lost", func(sc *windows) { sc.LostReplies = .005 }),
		with("1 of 20 replies lost", func(sc *windows) { sc.LostReplies = .05 }),
		with("1 of 5 messages arrives twice", func(sc *windows) { sc.Duplicates = .2 }),
		with("two nodes killed and started again", func(sc *windows) { sc.Restarts = []Restart{{0, 21 * sec, false}, {1, 33 * sec, false}} }),
		with("one node cut off for 15 s", func(sc *windows) { sc.Cuts = []Cut{{0, 20 * sec, 35 * sec}} }),
	}
}
