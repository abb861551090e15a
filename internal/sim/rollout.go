package sim

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// A Rollout is a case whose nodes don't have the same parameters. What it admits lies between what the least and what the most generous
// of them admit, each from one store with the same requests.
type Rollout struct {
	Name string
	// Run, Least and Most run it, for a seed.
	Run, Least, Most func(seed uint64) Result
	// Cut are the times in which nodes are cut off: what they admit by themselves then is beyond what a store can know.
	Cut []Cut
}

// Within is what a run admitted, as a part of what the most generous parameters admit, without what nodes admitted while they were cut off, and as a
// part of what the least generous do.
func (r Rollout) Within(seed uint64) (most, least float64) {
	got := r.Run(seed)
	alone := 0
	for _, c := range r.Cut {
		for _, h := range got.Hits {
			if h.Node == c.Node && h.At >= epoch+int64(c.From) && h.At < epoch+int64(c.To) {
				alone++
			}
		}
	}
	return float64(got.Admitted-alone) / float64(r.Most(seed).Admitted), float64(got.Admitted) / float64(r.Least(seed).Admitted)
}

// bucketOf makes a bucket of a kind: how many flow in per window, and how many it holds.
type bucketOf func(limit, size int64) algorithms.Params

// bucketKinds are the three, for a window.
func bucketKinds(window time.Duration) map[string]bucketOf {
	return map[string]bucketOf{
		"token_bucket": func(limit, size int64) algorithms.Params {
			return algorithms.Params{Kind: algorithms.TokenBucket, Limit: limit, Window: window, Burst: size}
		},
		"gcra": func(limit, size int64) algorithms.Params {
			return algorithms.Params{Kind: algorithms.GCRA, Limit: limit, Window: window, Burst: size}
		},
		"leaky_bucket": func(limit, size int64) algorithms.Params {
			return algorithms.Params{Kind: algorithms.LeakyBucket, Limit: limit, Window: window, Queue: size - 1}
		},
	}
}

// Rollouts are three nodes with parameters of their own at sync_rate 200ms, a client that asks for three times the highest limit, and what may
// happen meanwhile.
func Rollouts(kind string) (all []Rollout) {
	type size struct{ limit, size int64 }
	add := func(name string, window time.Duration, load Load, sizes []size, change func(sc *Buckets, of func(size) algorithms.Params)) {
		of := func(s size) algorithms.Params {
			return bucketKinds(window)[kind](s.limit, s.size)
		}
		least, most := sizes[0], sizes[0]
		sc := Buckets{Model: Shipped, Rate: sec / 5, Nodes: 3, Latency: near, Load: load}
		for _, s := range sizes {
			sc.Each = append(sc.Each, Parameters{Algorithm: of(s)})
			least, most = size{min(least.limit, s.limit), min(least.size, s.size)}, size{max(most.limit, s.limit), max(most.size, s.size)}
		}
		sc.Each, sc.Algorithm = sc.Each[:min(3, len(sc.Each))], of(most)
		if change != nil {
			change(&sc, of)
		}
		exact := func(of algorithms.Params) func(seed uint64) Result {
			return func(seed uint64) Result { sc := sc; sc.Seed, sc.Algorithm = seed, of; return sc.Exact() }
		}
		all = append(all, Rollout{
			Name: name, Run: func(seed uint64) Result { sc := sc; sc.Seed = seed; return sc.Run() },
			Least: exact(of(least)), Most: exact(of(most)), Cut: sc.Cuts,
		})
	}
	type of = func(size) algorithms.Params
	const minute = time.Minute
	busy := func(limit int64, window, d time.Duration) Load {
		return Constant(3*float64(limit)/window.Seconds(), d)
	}
	restarts := func(every, until time.Duration, nodes int) (all []Restart) {
		for i := 1; time.Duration(i)*every < until; i++ {
			all = append(all, Restart{Node: i % nodes, At: time.Duration(i) * every})
		}
		return all
	}
	add("limits 50, 100, 100 in 10m, `burst 100`", 10*minute, busy(100, 10*minute, 20*minute), []size{{50, 100}, {100, 100}, {100, 100}}, nil)
	add("limits 50, 100, 200 in 10m, `burst 100`", 10*minute, busy(200, 10*minute, 20*minute), []size{{50, 100}, {100, 100}, {200, 100}}, nil)
	add("`burst` 30, 60, 100 at 100 in 10m", 10*minute, busy(100, 10*minute, 20*minute), []size{{100, 30}, {100, 60}, {100, 100}}, nil)
	add("a rollout from 50 to 100 in 10m, node by node, each reloaded", 10*minute, busy(100, 10*minute, 20*minute), []size{{50, 100}, {50, 100}, {50, 100}, {100, 100}},
		func(sc *Buckets, of of) {
			for i := range 3 {
				sc.Reloads = append(sc.Reloads, Reload{i, time.Duration(i+1) * 2 * minute, Parameters{Algorithm: of(size{100, 100})}})
			}
		})
	add("the same, each restarted", 10*minute, busy(100, 10*minute, 20*minute), []size{{50, 100}, {50, 100}, {50, 100}, {100, 100}},
		func(sc *Buckets, of of) {
			for i := range 3 {
				at := time.Duration(i+1) * 2 * minute
				sc.Reloads = append(sc.Reloads, Reload{i, at, Parameters{Algorithm: of(size{100, 100})}})
				sc.Restarts = append(sc.Restarts, Restart{Node: i, At: at, Clean: true})
			}
		})
	add("a reload from 50 to 100 in 10m beside a node that starts after it", 10*minute, busy(100, 10*minute, 15*minute), []size{{50, 100}, {100, 100}, {100, 100}},
		func(sc *Buckets, of of) {
			sc.Reloads = []Reload{{0, 100 * sec, Parameters{Algorithm: of(size{100, 100})}}}
			sc.Restarts = []Restart{{2, 150 * sec, false}}
		})
	add("1 in 1m with `burst` 200, 200, 100", minute, Constant(1, 20*minute), []size{{1, 200}, {1, 200}, {1, 100}}, nil)
	add("the same, a node killed every 100 s", minute, Constant(1, 20*minute), []size{{1, 200}, {1, 200}, {1, 100}},
		func(sc *Buckets, _ of) { sc.Restarts = restarts(100*sec, 20*minute, 3) })
	add("the same, silent for 12 minutes, and all killed meanwhile", minute, Load{{For: 200 * sec, Rate: 3}, {For: 700 * sec}, {For: 300 * sec, Rate: 3}}, []size{{1, 200}, {1, 200}, {1, 100}},
		func(sc *Buckets, _ of) {
			sc.Restarts = []Restart{{0, 890 * sec, false}, {1, 891 * sec, false}, {2, 892 * sec, false}}
		})
	add("the same, one node cut off for 400 s", minute, Constant(1, 20*minute), []size{{1, 200}, {1, 200}, {1, 100}},
		func(sc *Buckets, _ of) { sc.Cuts = []Cut{{0, 100 * sec, 500 * sec}} })
	add("limits 50, 100, 200 in 10m, one node cut off for 15 minutes", 10*minute, busy(200, 10*minute, 40*minute), []size{{50, 100}, {100, 100}, {200, 100}},
		func(sc *Buckets, _ of) { sc.Cuts = []Cut{{0, 5 * minute, 20 * minute}} })
	add("60 in 1m, `burst` 60, one node cut off for 800 s", minute, busy(60, minute, 20*minute), []size{{60, 60}, {60, 60}, {60, 60}},
		func(sc *Buckets, _ of) { sc.Cuts = []Cut{{0, 100 * sec, 900 * sec}} })
	add("60 in 1m, `burst` 60, 40, 60, FLUSHALL every 100 s", minute, busy(60, minute, 10*minute), []size{{60, 60}, {60, 40}, {60, 60}},
		func(sc *Buckets, _ of) {
			for at := 50 * sec; at < 10*minute; at += 100 * sec {
				sc.Flushes = append(sc.Flushes, at)
			}
		})
	add("the same, and all killed two seconds later", minute, busy(60, minute, 10*minute), []size{{60, 60}, {60, 40}, {60, 60}},
		func(sc *Buckets, _ of) {
			for at := 50 * sec; at < 10*minute; at += 100 * sec {
				sc.Flushes = append(sc.Flushes, at)
				for i := range 3 {
					sc.Restarts = append(sc.Restarts, Restart{Node: i, At: at + 2*sec + time.Duration(i)*sec/2})
				}
			}
		})
	add("100, 200, 400 in 1s, `burst` 10, `sync_rate` 200ms, 1s, 300ms", sec, busy(400, sec, 30*sec), []size{{100, 10}, {200, 10}, {400, 10}},
		func(sc *Buckets, _ of) { sc.Each[1].Rate, sc.Each[2].Rate = sec, 300*time.Millisecond })
	return all
}
