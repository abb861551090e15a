package sim

import (
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// A Rollout is a case whose nodes don't have the same parameters. What it admits lies between what
// the least and what the most generous of them admit, each from one store with the same requests.
type Rollout struct {
	Name string
	// Run, Least and Most run it, for a seed.
	Run, Least, Most func(seed uint64) Result
	// Cut are the times in which nodes are cut off: what they admit by themselves then is beyond
	// what a store can know.
	Cut []Cut
}

// Within is what a run admitted, as a part of what the most generous parameters admit, without what
// nodes admitted while they were cut off, and as a part of what the least generous do.
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

// A bucketSize is a limit, which is what flows in per window, and how many the bucket holds.
type bucketSize struct{ limit, size int64 }

// bucketOf makes a bucket of a kind and window.
type bucketOf func(bucketSize) algorithms.Params

func bucketsOf(kind string, window time.Duration) bucketOf {
	return func(s bucketSize) algorithms.Params {
		p := algorithms.Params{Limit: s.limit, Window: window, Burst: s.size}
		switch kind {
		case "token_bucket":
			p.Kind = algorithms.TokenBucket
		case "gcra":
			p.Kind = algorithms.GCRA
		case "leaky_bucket":
			p.Kind, p.Burst, p.Queue = algorithms.LeakyBucket, 0, s.size-1
		}
		return p
	}
}

// A rolloutCase is three nodes with the first three sizes, and what else happens. A fourth size is
// one that a node is changed to.
type rolloutCase struct {
	name   string
	window time.Duration
	load   Load
	sizes  []bucketSize
	change func(sc *Buckets, of bucketOf)
}

// Rollouts returns cases of three nodes with parameters of their own at sync_rate 200ms, and a
// client that asks for three times the highest limit.
func Rollouts(kind string) (all []Rollout) {
	for _, c := range slices.Concat(mixedCases(), faultCases()) {
		all = append(all, c.of(bucketsOf(kind, c.window)))
	}
	return all
}

func (c rolloutCase) of(of bucketOf) Rollout {
	least, most := c.sizes[0], c.sizes[0]
	sc := Buckets{Model: Shipped, Rate: sec / 5, Nodes: 3, Latency: near, Load: c.load}
	for _, s := range c.sizes {
		sc.Each = append(sc.Each, Parameters{Algorithm: of(s)})
		least = bucketSize{min(least.limit, s.limit), min(least.size, s.size)}
		most = bucketSize{max(most.limit, s.limit), max(most.size, s.size)}
	}
	sc.Each, sc.Algorithm = sc.Each[:min(3, len(sc.Each))], of(most)
	if c.change != nil {
		c.change(&sc, of)
	}
	exact := func(p algorithms.Params) func(seed uint64) Result {
		return func(seed uint64) Result { sc := sc; sc.Seed, sc.Algorithm = seed, p; return sc.Exact() }
	}
	return Rollout{
		Name: c.name, Run: func(seed uint64) Result { sc := sc; sc.Seed = seed; return sc.Run() },
		Least: exact(of(least)), Most: exact(of(most)), Cut: sc.Cuts,
	}
}

// asks is a client that asks for three times a limit.
func asks(limit int64, window, d time.Duration) Load {
	return Constant(3*float64(limit)/window.Seconds(), d)
}

// mixedCases are limits that differ, and limits that are changed node by node.
func mixedCases() []rolloutCase {
	return []rolloutCase{
		{"limits 50, 100, 100 in 10m, `burst 100`", 10 * time.Minute, asks(100, 10*time.Minute, 20*time.Minute), []bucketSize{{50, 100}, {100, 100}, {100, 100}}, nil},
		{"limits 50, 100, 200 in 10m, `burst 100`", 10 * time.Minute, asks(200, 10*time.Minute, 20*time.Minute), []bucketSize{{50, 100}, {100, 100}, {200, 100}}, nil},
		{"`burst` 30, 60, 100 at 100 in 10m", 10 * time.Minute, asks(100, 10*time.Minute, 20*time.Minute), []bucketSize{{100, 30}, {100, 60}, {100, 100}}, nil},
		{"a rollout from 50 to 100 in 10m, node by node, each reloaded", 10 * time.Minute, asks(100, 10*time.Minute, 20*time.Minute), []bucketSize{{50, 100}, {50, 100}, {50, 100}, {100, 100}},
			func(sc *Buckets, of bucketOf) {
				for i := range 3 {
					sc.Reloads = append(sc.Reloads, Reload{i, time.Duration(i+1) * 2 * time.Minute, Parameters{Algorithm: of(bucketSize{100, 100})}})
				}
			}},
		{"the same, each restarted", 10 * time.Minute, asks(100, 10*time.Minute, 20*time.Minute), []bucketSize{{50, 100}, {50, 100}, {50, 100}, {100, 100}},
			func(sc *Buckets, of bucketOf) {
				for i := range 3 {
					at := time.Duration(i+1) * 2 * time.Minute
					sc.Reloads = append(sc.Reloads, Reload{i, at, Parameters{Algorithm: of(bucketSize{100, 100})}})
					sc.Restarts = append(sc.Restarts, Restart{Node: i, At: at, Clean: true})
				}
			}},
		{"a reload from 50 to 100 in 10m beside a node that starts after it", 10 * time.Minute, asks(100, 10*time.Minute, 15*time.Minute), []bucketSize{{50, 100}, {100, 100}, {100, 100}},
			func(sc *Buckets, of bucketOf) {
				sc.Reloads = []Reload{{0, 100 * sec, Parameters{Algorithm: of(bucketSize{100, 100})}}}
				sc.Restarts = []Restart{{2, 150 * sec, false}}
			}},
	}
}

// faultCases are the same with nodes that end or are cut off, and a store that forgets.
func faultCases() []rolloutCase {
	return []rolloutCase{
		{"1 in 1m with `burst` 200, 200, 100", time.Minute, Constant(1, 20*time.Minute), []bucketSize{{1, 200}, {1, 200}, {1, 100}}, nil},
		{"the same, a node killed every 100 s", time.Minute, Constant(1, 20*time.Minute), []bucketSize{{1, 200}, {1, 200}, {1, 100}},
			func(sc *Buckets, _ bucketOf) { sc.Restarts = restarts(100*sec, 20*time.Minute, 3) }},
		{"the same, silent for 12 minutes, and all killed meanwhile", time.Minute, Load{{For: 200 * sec, Rate: 3}, {For: 700 * sec}, {For: 300 * sec, Rate: 3}}, []bucketSize{{1, 200}, {1, 200}, {1, 100}},
			func(sc *Buckets, _ bucketOf) {
				sc.Restarts = []Restart{{0, 890 * sec, false}, {1, 891 * sec, false}, {2, 892 * sec, false}}
			}},
		{"the same, one node cut off for 400 s", time.Minute, Constant(1, 20*time.Minute), []bucketSize{{1, 200}, {1, 200}, {1, 100}},
			func(sc *Buckets, _ bucketOf) { sc.Cuts = []Cut{{0, 100 * sec, 500 * sec}} }},
		{"limits 50, 100, 200 in 10m, one node cut off for 15 minutes", 10 * time.Minute, asks(200, 10*time.Minute, 40*time.Minute), []bucketSize{{50, 100}, {100, 100}, {200, 100}},
			func(sc *Buckets, _ bucketOf) { sc.Cuts = []Cut{{0, 5 * time.Minute, 20 * time.Minute}} }},
		{"60 in 1m, `burst` 60, one node cut off for 800 s", time.Minute, asks(60, time.Minute, 20*time.Minute), []bucketSize{{60, 60}, {60, 60}, {60, 60}},
			func(sc *Buckets, _ bucketOf) { sc.Cuts = []Cut{{0, 100 * sec, 900 * sec}} }},
		{"60 in 1m, `burst` 60, 40, 60, FLUSHALL every 100 s", time.Minute, asks(60, time.Minute, 10*time.Minute), []bucketSize{{60, 60}, {60, 40}, {60, 60}},
			func(sc *Buckets, _ bucketOf) {
				for at := 50 * sec; at < 10*time.Minute; at += 100 * sec {
					sc.Flushes = append(sc.Flushes, at)
				}
			}},
		{"the same, and all killed two seconds later", time.Minute, asks(60, time.Minute, 10*time.Minute), []bucketSize{{60, 60}, {60, 40}, {60, 60}},
			func(sc *Buckets, _ bucketOf) {
				for at := 50 * sec; at < 10*time.Minute; at += 100 * sec {
					sc.Flushes = append(sc.Flushes, at)
					for i := range 3 {
						sc.Restarts = append(sc.Restarts, Restart{Node: i, At: at + 2*sec + time.Duration(i)*sec/2})
					}
				}
			}},
		{"100, 200, 400 in 1s, `burst` 10, `sync_rate` 200ms, 1s, 300ms", sec, asks(400, sec, 30*sec), []bucketSize{{100, 10}, {200, 10}, {400, 10}},
			func(sc *Buckets, _ bucketOf) { sc.Each[1].Rate, sc.Each[2].Rate = sec, 300*time.Millisecond }},
	}
}

// restarts kills one node after the other.
func restarts(every, until time.Duration, nodes int) (all []Restart) {
	for i := 1; time.Duration(i)*every < until; i++ {
		all = append(all, Restart{Node: i % nodes, At: time.Duration(i) * every})
	}
	return all
}
