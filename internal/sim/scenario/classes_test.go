package scenario

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/sim"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// classes are two kinds of requests on one key: those of a flood go by a lower limit than those
// that pay.
type classes struct {
	kind       algorithms.Kind
	limit, low int64 // in ten seconds
	// number is set where the lower limit comes with the request. Else what is above it is
	// reserved, of the burst of a bucket.
	number bool
	nodes  int
	rate   time.Duration
	// latency is the one-way time to the store.
	latency time.Duration
	flood   float64 // requests per second
	on      int     // the node that is flooded, -1 for all
	// pays is how many requests of those that pay come at once to a node, and every how often.
	// Where only one node is flooded it is another one.
	pays  int
	every time.Duration
	// floods is set where those that pay flood as well, on all nodes.
	floods bool
	// alike has the tables take all requests for ones of the same limit.
	alike bool
}

// outcome is what was asked for by those that pay, how much of that was denied while the whole
// limit had room, and what all were admitted.
type outcome struct{ asked, wrong, admitted int }

func (c classes) String() string {
	return fmt.Sprintf("%v, %d nodes, flood on %d, lower limit %d by number %v, sync_rate %v", c.kind, c.nodes, c.on, c.low, c.number, c.rate)
}

// limits are the whole one, and that of the flood.
func (c classes) limits() (whole, low algorithms.Limit) {
	p := c.params()
	whole = p.Compile()
	if c.kind.Traits().Draining && !c.number {
		p.Burst = c.low
	} else {
		p.Limit = c.low
	}
	return whole, p.Compile()
}

func (c classes) params() algorithms.Params {
	return algorithms.Params{Kind: c.kind, Limit: c.limit, Window: 10 * sec}
}

// run is a minute and a half of requests.
func (c classes) run(seed uint64) outcome {
	return algorithms.ByState(c.kind, runClasses[algorithms.WindowState], runClasses[algorithms.BucketState], runClasses[algorithms.LogState])(c, seed)
}

func runClasses[S any](c classes, seed uint64) (o outcome) {
	whole, low := c.limits()
	rng := rand.New(rand.NewPCG(seed, 7))
	w, k := sim.NewNetwork(epoch+rng.Int64N(int64(10*sec)), c.latency, seed), keysOf(1)[0]
	exact := algorithms.MachineOf[S](c.kind)
	tables, _ := joinAll[S](w, c.nodes, c.params(), table.SyncConfig{Interval: c.rate, LimitsVary: !c.alike}, false)
	var truth S
	take := func(node int, l algorithms.Limit, pays bool) {
		now := w.Now()
		if pays {
			o.asked++
		}
		switch d := tables[node].Take(l, k.key, k.raw, now, 1, 0); {
		case d.Allowed:
			o.admitted++
			if !exact.Take(&truth, l, now, 1, 0).Allowed {
				exact.Penalize(&truth, whole, now, 1)
			}
		case pays && exact.Take(&truth, whole, now, 0, 0).Remaining > 0 && (d.Estimated || c.kind != algorithms.SlidingLog):
			// A log counts what others were admitted up to a sixteenth of the window too long.
			o.wrong++
		}
	}
	start := w.Now() + int64(2*sec)
	flood, pay := start, start+rng.Int64N(int64(c.every))
	for min(flood, pay) < start+int64(90*sec) {
		w.Until(min(flood, pay))
		node := rng.IntN(c.nodes)
		if flood < pay {
			flood += int64(rng.ExpFloat64() / c.flood * float64(sec))
			if c.on >= 0 {
				node = c.on
			}
			take(node, low, false)
			continue
		}
		pay += int64((1 + rng.Float64()/3) * float64(c.every))
		if c.on >= 0 && !c.floods {
			node = (c.on + 1 + rng.IntN(c.nodes-1)) % c.nodes
		}
		for range c.pays {
			take(node, whole, true)
		}
	}
	return o
}

// everyClasses calls f for all algorithms that requests of several limits go with, numbers of
// nodes, floods on one of them and on all, ways to a lower limit, and rates: in chaos. Else it
// takes every fifth, which has each of them with some of the others.
func everyClasses(f func(c classes)) {
	n := 0
	for _, kind := range counting {
		for _, nodes := range []int{2, 3, 6} {
			for _, on := range []int{0, -1} {
				for _, number := range []bool{false, true} {
					for _, rate := range []time.Duration{sec / 5, sec} {
						if n++; redistest.Chaos || n%5 == 0 {
							f(classes{kind: kind, nodes: nodes, on: on, number: number, rate: rate, latency: near})
						}
					}
				}
			}
		}
	}
}

// Whoever is below what it may have is not denied because of what is denied to others by a lower
// limit, whether that is on one node or on all of them, and whether the rest is reserved or each
// request brings its limit. Those that pay ask for at most half of what is left to them, a few at
// once.
func TestDeniedRequestsOfOthersDenyNobody(t *testing.T) {
	var got, alike outcome
	seed := uint64(0)
	everyClasses(func(c classes) {
		seed++
		rng := rand.New(rand.NewPCG(seed, 9))
		c.limit = 60 + rng.Int64N(200)
		c.low = c.limit * (6 + rng.Int64N(3)) / 10
		if c.number {
			c.low = c.limit * (2 + rng.Int64N(4)) / 10
		}
		c.flood = float64(c.limit) * (.5 + 2*rng.Float64())
		c.pays = int(max(2, (c.limit-c.low)/8))
		c.every = 2600 * time.Millisecond // at most four times in ten seconds
		o := c.run(seed)
		if o.wrong*1000 > o.asked && o.wrong > 1 {
			t.Errorf("%v: %d of %d denied while there was room", c, o.wrong, o.asked)
		}
		got.asked, got.wrong = got.asked+o.asked, got.wrong+o.wrong
		c.alike = true
		o = c.run(seed)
		alike.asked, alike.wrong = alike.asked+o.asked, alike.wrong+o.wrong
	})
	t.Logf("%d of %d denied while there was room, and %d of %d by the estimate for requests of one limit", got.wrong, got.asked, alike.wrong, alike.asked)
	if got.wrong*1000 > got.asked || alike.wrong*1000 < 3*alike.asked {
		t.Errorf("%d of %d denied while there was room, want at most 1 of 1000; by the estimate for requests of one limit %d, want 3 times as many", got.wrong, got.asked, alike.wrong)
	}
}

// A flood by those that pay, on all nodes, is estimated as where all requests go by one limit, also
// while others flood one node or all, and the store is far: it gets no more. Of a run that is a
// matter of luck, by some percent, so several of each are added up.
func TestAFloodOfThoseThatPayIsEstimated(t *testing.T) {
	const runs = 6
	seed := uint64(0)
	everyClasses(func(c classes) {
		c.limit, c.low, c.pays, c.floods, c.latency = 200, 160, 1, true, 25*time.Millisecond
		c.flood, c.every = 20, 12*time.Millisecond
		got, before := 0, 0
		for range runs {
			seed++
			c.alike = false
			got += c.run(seed).admitted
			c.alike = true
			before += c.run(seed).admitted
		}
		if float64(got) > 1.02*float64(before)+float64(c.nodes) {
			t.Errorf("%v: %d admitted in %d runs, want the %d of requests of one limit", c, got, runs, before)
		}
	})
}

// What a limit grants and gets back, as another one denies, is no attempt: a flood on one node that
// another limit denies leaves those alone that are below this one on other nodes.
func TestWhatAnotherLimitDeniesDeniesNobody(t *testing.T) {
	p := Sliding(100, 10*sec)
	for _, nodes := range []int{2, 3, 6} {
		w, l, k := sim.NewNetwork(epoch, near, 1), p.Compile(), keysOf(1)[0]
		tables, _ := joinAll[algorithms.WindowState](w, nodes, p, table.SyncConfig{Interval: sec}, false)
		asked, wrong := 0, 0
		for i := range 60 * 400 {
			w.Until(epoch + int64(2*sec) + int64(i)*int64(sec)/400)
			if d := tables[0].Take(l, k.key, k.raw, w.Now(), 1, 0); d.Allowed {
				tables[0].Refund(l, k.key, d, 1)
			}
			for range 3 * (1 - min(1, i%200)) { // 60 of 100 are used
				asked++
				if !tables[1+i/200%(nodes-1)].Take(l, k.key, k.raw, w.Now(), 1, 0).Allowed {
					wrong++
				}
			}
		}
		if wrong > 0 {
			t.Errorf("%d nodes: %d of %d denied, though 60 of 100 are used", nodes, wrong, asked)
		}
	}
}
