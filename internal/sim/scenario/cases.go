package scenario

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

const (
	sec = time.Second
	// near is a store in the same rack.
	near = 500 * time.Microsecond
)

type (
	// Windows, Buckets and Logs are the scenarios of the algorithms.
	Windows = Scenario[algorithms.WindowState]
	Buckets = Scenario[algorithms.BucketState]
	Logs    = Scenario[algorithms.LogState]
)

// A Case is a scenario of any algorithm, for any model and seed.
type Case struct {
	Name string
	// Run runs it, and Exact runs the same requests against one centralized limiter.
	Run   func(m Model, seed uint64) Result
	Exact func(seed uint64) Result

	known *sync.Map // what Exact has measured, by the seed
}

// CaseOf names a scenario.
func CaseOf[S any](name string, sc Scenario[S]) Case {
	return Case{name,
		func(m Model, seed uint64) Result { sc := sc; sc.Model, sc.Seed = m, seed; return sc.Run() },
		func(seed uint64) Result { sc := sc; sc.Seed = seed; return sc.Exact() },
		new(sync.Map),
	}
}

// exact is what Exact measures, without the Hits, and worked out once.
func (c Case) exact(seed uint64) Result {
	if r, ok := c.known.Load(seed); ok {
		return r.(Result)
	}
	r := c.Exact(seed)
	r.Hits = nil
	c.known.Store(seed, r)
	return r
}

// A Figure is what several runs give: the median of each.
type Figure struct {
	Peak, Mean, Share, Admitted, Calls float64
	// Worst is the highest of the peaks, and Most the most that was admitted.
	Worst, Most float64
	// Estimated is the share of the requests that the estimate alone denied.
	Estimated float64
	// PeakOver, MeanOver and AdmittedOver are those of each run by those of the centralized
	// limiter.
	PeakOver, MeanOver, AdmittedOver float64
	// DeniedOver is the share of the requests that were denied less that of the centralized
	// limiter.
	DeniedOver float64
}

// Figures runs a case with as many seeds.
func (c Case) Figures(m Model, seeds int) Figure {
	return figureOf(seeds, func(seed uint64) Result { return c.Run(m, seed) }, c.exact)
}

// Ideal is what the centralized limiter does.
func (c Case) Ideal(seeds int) Figure { return figureOf(seeds, c.exact, c.exact) }

func figureOf(seeds int, run, exact func(seed uint64) Result) (f Figure) {
	got, want := make([]Result, seeds), make([]Result, seeds)
	each(seeds, func(seed int) {
		got[seed], want[seed] = run(uint64(seed)), exact(uint64(seed))
		got[seed].Hits = nil // they are many
	})
	median := func(of func(r, exact Result) float64) float64 {
		all := make([]float64, seeds)
		for i := range all {
			all[i] = of(got[i], want[i])
		}
		slices.Sort(all)
		f.Worst = all[seeds-1]
		return (all[seeds/2] + all[(seeds-1)/2]) / 2
	}
	f.Admitted = median(func(r, _ Result) float64 { return float64(r.Admitted) })
	f.Most = f.Worst
	f.Mean = median(func(r, _ Result) float64 { return r.Mean })
	f.Share = median(func(r, _ Result) float64 { return r.Share() })
	f.Calls = median(func(r, _ Result) float64 { return r.CallsASecond() })
	f.Estimated = median(func(r, _ Result) float64 { return float64(r.Estimated) / float64(max(1, r.Requests)) })
	f.PeakOver = median(func(r, exact Result) float64 { return r.Peak / exact.Peak })
	f.MeanOver = median(func(r, exact Result) float64 { return r.Mean / exact.Mean })
	f.AdmittedOver = median(func(r, exact Result) float64 { return float64(r.Admitted) / float64(exact.Admitted) })
	f.DeniedOver = median(func(r, exact Result) float64 { return exact.Share() - r.Share() })
	f.Peak = median(func(r, _ Result) float64 { return r.Peak })
	return f
}

// each calls f for 0 to n-1, as many at once as there are processors.
func each(n int, f func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	wg.Wait()
}

// Sliding is the default algorithm.
func Sliding(limit int64, window time.Duration) algorithms.Params {
	return algorithms.Params{Kind: algorithms.SlidingWindow, Limit: limit, Window: window, SubWindows: 1}
}

// Overload is ten nodes, 1000/5s and sync_rate 0.5s, at an offered load as a multiple of the limit.
func Overload(name string, demand float64) Case {
	return CaseOf(name, Windows{
		Algorithm: Sliding(1000, 5*sec), Rate: sec / 2, Nodes: 10, Latency: near, Warm: 10 * sec, Load: Constant(200*demand, 40*sec),
	})
}

// Surge is ten nodes, 1000/10s and sync_rate 1s, and a client that goes on in the middle of a
// window at 20 times the limit; before is what it asked for, in requests per second.
func Surge(name string, before float64) Case {
	return CaseOf(name, Windows{
		Algorithm: Sliding(1000, 10*sec), Rate: sec, Nodes: 10, Latency: near, Warm: 15 * sec,
		Load: Load{{For: 15 * sec, Rate: before}, {For: 35 * sec, Rate: 2000}},
	})
}

// Common are the scenarios that other limiters are compared by: many nodes, a client above its
// limit.
func Common() []Case {
	return []Case{
		Overload("10 nodes, 1000/5s, sync 0.5s, offered load 1.6x", 1.6),
		Overload("same, offered load 5x", 5),
		CaseOf("2 nodes, 500/1s, sync 0.2s, offered load 1.6x", Windows{
			Algorithm: Sliding(500, sec), Rate: sec / 5, Nodes: 2, Latency: near, Warm: 3 * sec, Load: Constant(800, 20*sec),
		}),
		Surge("10 nodes, 1000/10s, sync 1s, cold start at 20x", 0),
		Surge("same, step from 0.05x to 20x", 5),
		Surge("same, step from 0.8x to 20x", 80),
		Flooding("8 nodes, 100/60s, sync 10s, offered load 20x"),
	}
}

// Flooding is a small limit with a long interval and a client that never stops, for ten minutes.
func Flooding(name string) Case {
	return CaseOf(name, Windows{
		Algorithm: Sliding(100, 60*sec), Rate: 10 * sec, Nodes: 8, Latency: near, Load: Constant(20*100./60, 600*sec),
	})
}

// Small are limits of few requests, met by a client that was not there before.
func Small() (cases []Case) {
	newcomer := func(name string, limit int64, nodes int, rate float64) {
		cases = append(cases, CaseOf(name, Windows{
			Algorithm: Sliding(limit, 60*sec), Rate: sec, Nodes: nodes, Latency: near, Load: Constant(rate, 59*sec),
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

// Faulty is 3 nodes at 1.5 times the limit of 1000/5s, with something that goes wrong.
func Faulty() []Case {
	base := Windows{Algorithm: Sliding(1000, 5*sec), Rate: sec / 2, Nodes: 3, Latency: near, Warm: 10 * sec, Load: Constant(300, 60*sec)}
	with := func(name string, change func(*Windows)) Case {
		sc := base
		change(&sc)
		return CaseOf(name, sc)
	}
	return []Case{
		with("nothing goes wrong", func(*Windows) {}),
		with("clocks 30 s slow, right, 17 s fast", func(sc *Windows) { sc.Skew = []time.Duration{-30 * sec, 0, 17 * sec} }),
		with("a clock steps 2 s ahead at 20 s, and back at 40 s", func(sc *Windows) { sc.Steps = []Step{{0, 20 * sec, 2 * sec}, {0, 40 * sec, -2 * sec}} }),
		with("90 % of the requests on one node", func(sc *Windows) { sc.Weights = []float64{.9, .1, 0} }),
		with("1 of 200 replies lost", func(sc *Windows) { sc.LostReplies = .005 }),
		with("1 of 20 replies lost", func(sc *Windows) { sc.LostReplies = .05 }),
		with("1 of 5 messages arrives twice", func(sc *Windows) { sc.Duplicates = .2 }),
		with("two nodes killed and started again", func(sc *Windows) { sc.Restarts = []Restart{{0, 21 * sec, false}, {1, 33 * sec, false}} }),
		with("one node cut off for 15 s", func(sc *Windows) { sc.Cuts = []Cut{{0, 20 * sec, 35 * sec}} }),
	}
}
