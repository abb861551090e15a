package scenario

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/sim"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// within fails unless low <= got <= high.
func within(t *testing.T, what string, got, low, high float64) {
	t.Helper()
	if got < low || got > high {
		t.Errorf("%s: got %.3f, want %.3f to %.3f", what, got, low, high)
	}
}

// counted is a table that counts the keys that it syncs.
type counted[S any] struct {
	*table.Table[S]
	synced *int
}

func (c counted[S]) TakeUpdates(now, seq int64, most int, early bool, dst []table.Update) []table.Update {
	updates := c.Table.TakeUpdates(now, seq, most, early, dst)
	*c.synced += len(updates)
	return updates
}

// joinAll makes tables that sync through a network, one of each node, and counts the keys that they
// sync. How they do is c, beside the waker; asks has them ask again.
func joinAll[S any](w *sim.Network, nodes int, p algorithms.Params, c table.SyncConfig, asks bool) (all []*table.Table[S], synced *int) {
	synced = new(int)
	for i := range nodes {
		t := table.New[S](p.Kind, mostKeys)
		link := w.Join(fmt.Sprint(i), counted[S]{t, synced}, c.Interval, p)
		c.Params, c.Early, c.Waker = p, true, link.Waker
		if asks {
			c.After = w.After
		}
		t.Configure(c, mostKeys)
		link.Start()
		all = append(all, t)
	}
	return all, synced
}

// counting are the kinds that don't queue.
var counting = []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow, algorithms.SlidingLog, algorithms.TokenBucket, algorithms.GCRA}

func TestOneSeedIsOneRun(t *testing.T) {
	c := Common()[2]
	if a, b := c.Run(Shipped, 7), c.Run(Shipped, 7); !reflect.DeepEqual(a, b) {
		t.Errorf("two runs of one seed: %d and %d admitted, %g and %g calls", a.Admitted, b.Admitted, a.CallsASecond(), b.CallsASecond())
	}
	if a, b := c.Run(Shipped, 7), c.Exact(7); a.Requests != b.Requests {
		t.Errorf("the centralized limiter saw %d requests, the nodes %d", b.Requests, a.Requests)
	}
}

// The design's table: what is admitted beyond the centralized limiter falls from column to column,
// and little of it is left.
func TestEachMeansBringsTheNodesNearerToOneStore(t *testing.T) {
	const seeds = 1
	for i, want := range []struct{ kong, scaled, shipped float64 }{
		{.06, .05, .03}, {.25, .06, .03}, {.10, .08, .04}, {1.2, 1.6, .20}, {1.2, 1.3, .20}, {1.2, .12, .06},
	} {
		c := Common()[i]
		t.Run(c.Name, func(t *testing.T) {
			exact, shipped := c.Ideal(seeds), c.Figures(Shipped, seeds)
			within(t, "plain: peak above the exact one", c.Figures(Kong, seeds).Peak-exact.Peak, want.kong, 10)
			within(t, "with the estimate", c.Figures(Scaled, seeds).Peak-exact.Peak, -.02, want.scaled)
			within(t, "as shipped", shipped.Peak-exact.Peak, -.02, want.shipped)
			within(t, "mean as shipped less the exact one", shipped.Mean-exact.Mean, -.02, .07)
		})
	}
}

func TestAllAlgorithmsHoldTheLimitTogetherAndDenyNoneBelowIt(t *testing.T) {
	for _, c := range Kinds(5, sec, 5) {
		f, exact := c.Figures(Shipped, 1), c.Ideal(1)
		within(t, c.Name+" at 5x: peak above the exact one", f.Peak-exact.Peak, -.03, .08)
		within(t, c.Name+" at 5x: mean", f.Mean, .97, 1.04)
	}
	for _, c := range Kinds(5, sec, 1.6) {
		f, exact := c.Figures(Shipped, 1), c.Ideal(1)
		within(t, c.Name+" at 1.6x: peak above the exact one", f.Peak-exact.Peak, -.03, .05)
		within(t, c.Name+" at 1.6x: mean", f.Mean, .93, 1.03)
	}
	for _, c := range Kinds(5, sec, .8) {
		within(t, c.Name+" at 0.8x: share admitted", c.Figures(Shipped, 1).Share, .97, 1)
	}
}

// A lump merged at each reply would admit little more than half of this.
func TestASmallBucketOnSeveralNodesAdmitsADemandBelowItsRate(t *testing.T) {
	for _, nodes := range []int{2, 3, 6} {
		at := func(demand float64) Case {
			return CaseOf("", Buckets{
				Algorithm: algorithms.Params{Kind: algorithms.TokenBucket, Limit: 100, Window: sec, Burst: 10},
				Rate:      sec / 2, Nodes: nodes, Latency: near, Load: Constant(100*demand, 30*sec), Warm: 5 * sec,
			})
		}
		within(t, "share admitted at 0.8x", at(.8).Figures(Shipped, 2).Share, .97, 1)
		f := at(5).Figures(Shipped, 2)
		within(t, "mean at 5x", f.Mean, .98, 1.02)
		within(t, "peak at 5x", f.Peak, .98, 1.10)
	}
}

// A node that sees all requests of a client has nobody to make room for: it decides what a single
// node would.
func TestANodeThatSeesAllOfAClientDecidesAsIfItWereAlone(t *testing.T) {
	only := []float64{0, 1, 0}
	for name, c := range map[string]Case{
		"fixed_window":   CaseOf("", Windows{Algorithm: algorithms.Params{Kind: algorithms.FixedWindow, Limit: 200, Window: 5 * sec}, Rate: sec, Nodes: 3, Weights: only, Latency: near, Load: Constant(39, 60*sec), Even: true}),
		"sliding_window": CaseOf("", Windows{Algorithm: Sliding(200, 5*sec), Rate: sec, Nodes: 3, Weights: only, Latency: near, Load: Constant(39, 60*sec), Even: true}),
		"sliding_log":    CaseOf("", Logs{Algorithm: algorithms.Params{Kind: algorithms.SlidingLog, Limit: 200, Window: 5 * sec}, Rate: sec, Nodes: 3, Weights: only, Latency: near, Load: Constant(39, 60*sec), Even: true}),
		"token_bucket":   CaseOf("", Buckets{Algorithm: algorithms.Params{Kind: algorithms.TokenBucket, Limit: 200, Window: 5 * sec, Burst: 2}, Rate: sec, Nodes: 3, Weights: only, Latency: near, Load: Constant(39, 60*sec), Even: true}),
		"bursts":         CaseOf("", Windows{Algorithm: Sliding(200, 5*sec), Rate: sec, Nodes: 3, Weights: only, Latency: 20 * time.Millisecond, Load: Bursts(100, sec, 4*sec, 10)}),
		"overload":       CaseOf("", Windows{Algorithm: Sliding(200, 5*sec), Rate: sec, Nodes: 3, Weights: only, Latency: near, Load: Constant(100, 60*sec)}),
		"a small bucket": CaseOf("", Buckets{Algorithm: algorithms.Params{Kind: algorithms.TokenBucket, Limit: 200, Window: 5 * sec, Burst: 5}, Rate: sec, Nodes: 3, Weights: only, Latency: near, Load: Constant(60, 60*sec)}),
	} {
		got, want := c.Run(Shipped, 1), c.Exact(1)
		if got.Admitted != want.Admitted || got.Estimated != 0 {
			t.Errorf("%s: %d of %d admitted, %d denied by the estimate; alone it admits %d", name, got.Admitted, got.Requests, got.Estimated, want.Admitted)
		}
	}
}

func TestUnevenBalancing(t *testing.T) {
	at := func(demand float64) Case {
		return CaseOf("", Windows{
			Algorithm: Sliding(1000, 5*sec), Rate: sec / 2, Nodes: 2, Weights: []float64{.9, .1},
			Latency: near, Load: Constant(200*demand, 40*sec), Warm: 10 * sec,
		})
	}
	within(t, "share admitted at 0.9x", at(.9).Figures(Shipped, 2).Share, .99, 1)
	for _, demand := range []float64{1.6, 5} {
		f := at(demand).Figures(Shipped, 2)
		within(t, "peak", f.Peak, .98, 1.04)
		within(t, "mean", f.Mean, .98, 1.02)
	}
}

func TestANodeCutOffGoesOnAloneAndComesBack(t *testing.T) {
	sc := Windows{
		Algorithm: Sliding(1000, 5*sec), Model: Shipped, Rate: sec / 2, Nodes: 3, Latency: near,
		Load: Constant(300, 70*sec), Cuts: []Cut{{0, 20 * sec, 40 * sec}},
	}
	r := sc.Run()
	windowsFrom := func(from, to time.Duration) float64 {
		return float64(r.Within(from, to)) / 1000 / (float64(to-from) / float64(5*sec))
	}
	within(t, "limits admitted a window before", windowsFrom(10*sec, 20*sec), .97, 1.03)
	// It admits its third of 1.5 limits, and the others all of theirs. Neither stops, neither gives
	// more than the limit.
	within(t, "while it is cut off", windowsFrom(25*sec, 40*sec), 1.2, 1.55)
	within(t, "after", windowsFrom(50*sec, 70*sec), .97, 1.03)
}

// A client that was not there before meets nodes that know nothing of each other. Each may give it
// a little before it hears.
func TestASmallLimitIsPassedByAboutOneRequestANode(t *testing.T) {
	for i, nodes := range []float64{3, 3, 10, 3, 10, 10} {
		c := Small()[i]
		var more float64
		const seeds = 5
		for seed := range uint64(seeds) {
			more += float64(c.Run(Shipped, seed).Admitted-c.Exact(seed).Admitted) / seeds
		}
		within(t, c.Name+": admitted beyond the centralized limiter", more, -1, nodes)
	}
}

// A client at 0.9 of a log's limit that changes nodes is hardly denied: of what others spent a node
// knows the sixteenth in which it was spent.
func TestALogDeniesFewWhoMove(t *testing.T) {
	for _, nodes := range []int{2, 6} {
		for stay, most := range map[time.Duration]float64{sec: .02, 3 * sec: .01, 7 * sec: .01} {
			for seed := range uint64(3) {
				r := Logs{
					Algorithm: algorithms.Params{Kind: algorithms.SlidingLog, Limit: 1000, Window: 10 * sec}, Model: Shipped, Rate: sec, Nodes: nodes, Latency: near,
					Warm: 20 * sec, Load: Wandering(90, stay, nodes, int(80*sec/stay)), Seed: seed,
				}.Run()
				within(t, fmt.Sprintf("%d nodes, each for %v, seed %d: denied wrongly", nodes, stay, seed), r.Wrong, 0, most)
			}
		}
	}
}

// Kinds are all algorithms under one load, as a multiple of the limit of 1000/10s.
func Kinds(nodes int, rate time.Duration, demand float64) []Case {
	load := Constant(100*demand, 60*sec)
	window := func(name string, alg algorithms.Params) Case {
		return CaseOf(name, Windows{Algorithm: alg, Rate: rate, Nodes: nodes, Latency: near, Warm: 20 * sec, Load: load})
	}
	bucket := func(name string, alg algorithms.Params) Case {
		return CaseOf(name, Buckets{Algorithm: alg, Rate: rate, Nodes: nodes, Latency: near, Warm: 20 * sec, Load: load})
	}
	const limit, span = 1000, 10 * sec
	return []Case{
		window("`fixed_window`", algorithms.Params{Kind: algorithms.FixedWindow, Limit: limit, Window: span}),
		window("`sliding_window`", Sliding(limit, span)),
		window("`sliding_window`, `sub_windows 4`", algorithms.Params{Kind: algorithms.SlidingWindow, Limit: limit, Window: span, SubWindows: 4}),
		CaseOf("`sliding_log`", Logs{
			Algorithm: algorithms.Params{Kind: algorithms.SlidingLog, Limit: limit, Window: span}, Rate: rate, Nodes: nodes, Latency: near, Warm: 20 * sec, Load: load,
		}),
		bucket("`token_bucket`, `burst 100`", algorithms.Params{Kind: algorithms.TokenBucket, Limit: limit, Window: span, Burst: 100}),
		bucket("`gcra`, `burst 10`", algorithms.Params{Kind: algorithms.GCRA, Limit: limit, Window: span, Burst: 10}),
		bucket("`leaky_bucket`, `queue 20`", algorithms.Params{Kind: algorithms.LeakyBucket, Limit: limit, Window: span, Queue: 20}),
	}
}
