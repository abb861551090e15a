// Package sim runs several nodes around one store in virtual time and measures how near their decisions come to those of one exact counter.
// Each node is a real table with a real algorithm; only time, the network and the store are models. A run is the same every time for
// one seed.
package sim

import (
	"math/rand/v2"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// epoch is the true time at which every run starts: the edge of an aligned window of any length that divides 100 s.
const epoch = int64(1_700_000_000_000_000_000)

// A Model says which of the means against unseen spending a node uses.
type Model struct {
	// Estimate holds against a request what others have probably spent unseen.
	Estimate bool
	// Early exchanges keys that are new or near their limit before their turn.
	Early bool
}

// Kong decides on what was synced and the node's own unsent part. Scaled adds the estimate, and Shipped is what Tide does.
var (
	Kong    = Model{}
	Scaled  = Model{Estimate: true}
	Shipped = Model{Estimate: true, Early: true}
)

// A Load is the requests of one client: from the start of its phases on, each a rate in requests per second for a time.
type Load []Phase

// A Phase is one part of a Load.
type Phase struct {
	For  time.Duration
	Rate float64
}

// Constant is the same rate all the time.
func Constant(rate float64, d time.Duration) Load { return Load{{For: d, Rate: rate}} }

// A Scenario is one run: a cluster, a client and what goes wrong.
type Scenario[S any] struct {
	Algorithm algorithms.Algorithm[S]
	Model     Model
	// Rate is the sync_rate.
	Rate time.Duration
	// Nodes is how many there are. Weights is the share of the requests that each gets; nil stands for equal ones.
	Nodes   int
	Weights []float64
	Load    Load
	// Even spaces requests evenly where they otherwise come as a Poisson process.
	Even bool
	// Latency is the mean of the one-way time to the store; each message takes half of it to one and a half times.
	Latency time.Duration
	// LostReplies is the share of the replies that never arrive, Duplicates that of the messages that arrive once more, later.
	LostReplies, Duplicates float64
	// Skew is how far each node's clock is ahead of the store's; nil stands for none.
	Skew []time.Duration
	// Cuts and Restarts happen at their times, counted from the start.
	Cuts     []Cut
	Restarts []Restart
	// Warm is the time after which Peak and Mean are measured.
	Warm time.Duration
	Seed uint64
}

// A Cut takes a node off the store for a time.
type Cut struct {
	Node     int
	From, To time.Duration
}

// A Restart replaces a node by a new process that knows nothing. Clean lets the old one send its last counts.
type Restart struct {
	Node  int
	At    time.Duration
	Clean bool
}

// A Result is what a run measures. Rates are per limit: 1 is the limit.
type Result struct {
	// Peak is the most that was admitted in any interval of the window's length, and Mean what was admitted a window.
	Peak, Mean float64
	// Admitted of Requests in all, and Refused by the estimate alone.
	Requests, Admitted, Estimated int
	// Calls is how many calls of all nodes the store got in a second, for this one key.
	Calls float64
	// Stored is what the store counts of all epochs when the run ends.
	Stored int64
	// At are the instants of what was admitted, and By the node of each.
	At []int64
	By []int
}

// Share is the part of the requests that was admitted.
func (r Result) Share() float64 { return float64(r.Admitted) / float64(max(1, r.Requests)) }

// Within is how many were admitted between two times from the start.
func (r Result) Within(from, to time.Duration) (n int) {
	for _, at := range r.At {
		if at >= epoch+int64(from) && at < epoch+int64(to) {
			n++
		}
	}
	return n
}

// Run runs a scenario.
func (sc Scenario[S]) Run() Result {
	w := newWorld(sc)
	var r Result
	for at, by := range w.arrivals {
		w.until(at)
		w.now = at
		r.Requests++
		d := w.nodes[by].take()
		if d.Estimated {
			r.Estimated++
		}
		if d.Allowed {
			r.At, r.By = append(r.At, at), append(r.By, by)
		}
	}
	r.Admitted = len(r.At)
	w.until(epoch + int64(sc.length()))
	r.Calls = float64(w.calls) / sc.length().Seconds()
	r.Stored = w.store.total()
	sc.measure(&r)
	return r
}

// Exact runs the same requests against one counter that all nodes share without delay.
func (sc Scenario[S]) Exact() Result {
	w := newWorld(sc)
	var s S
	var r Result
	for at, by := range w.arrivals {
		r.Requests++
		if sc.Algorithm.Take(&s, at, 1, 0).Allowed {
			r.At, r.By = append(r.At, at), append(r.By, by)
		}
	}
	r.Admitted = len(r.At)
	sc.measure(&r)
	return r
}

func (sc Scenario[S]) length() (sum time.Duration) {
	for _, p := range sc.Load {
		sum += p.For
	}
	return sum
}

// measure fills in Peak and Mean from the log.
func (sc Scenario[S]) measure(r *Result) {
	limit, window := sc.Algorithm.Rule()
	from := epoch + int64(sc.Warm)
	most, steady, oldest := 0, 0, 0
	for i, at := range r.At {
		if at < from {
			oldest = i + 1
			continue
		}
		steady++
		for r.At[oldest] <= at-int64(window) {
			oldest++
		}
		most = max(most, i-oldest+1)
	}
	r.Peak = float64(most) / float64(limit)
	r.Mean = float64(steady) / (float64(limit) * (sc.length() - sc.Warm).Seconds() / window.Seconds())
}

// arrivals yields the instants of the requests and the nodes that get them. They are the same for every Model.
func (w *world[S]) arrivals(yield func(at int64, by int) bool) {
	rng := rand.New(rand.NewPCG(w.sc.Seed, 1))
	start := epoch
	for _, p := range w.sc.Load {
		end := start + int64(p.For)
		for at := start; p.Rate > 0; {
			gap := 1.0
			if !w.sc.Even {
				gap = rng.ExpFloat64()
			}
			at += int64(gap * float64(time.Second) / p.Rate)
			if at >= end {
				break
			}
			if !yield(at, w.pick(rng)) {
				return
			}
		}
		start = end
	}
}

// pick is a random node.
func (w *world[S]) pick(rng *rand.Rand) int {
	if w.sc.Weights == nil {
		return rng.IntN(w.sc.Nodes)
	}
	x := rng.Float64()
	for i, share := range w.sc.Weights {
		if x -= share; x < 0 {
			return i
		}
	}
	return len(w.sc.Weights) - 1
}

var (
	client    = []byte("192.0.2.7")
	clientKey = table.KeyOf(client)
)
