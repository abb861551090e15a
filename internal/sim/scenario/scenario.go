// Package scenario runs several nodes around one store in virtual time and measures how near their
// decisions come to those of one centralized limiter. Each node is a real table with a real
// algorithm; only time, the network and the store are models. A run is the same every time for one
// seed.
package scenario

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// epoch is the true time at which every run starts: the boundary of an aligned window of any length
// that divides 100 s.
const epoch = int64(1_700_000_000_000_000_000)

// A Model says which of the means against unseen spending a node uses.
type Model struct {
	// Estimate holds against a request what others have probably spent unseen.
	Estimate bool
	// Early syncs keys that are new or near their limit before the cycle.
	Early bool
}

// Kong decides on what was synced and the node's own unsent part, which is the documented model of
// Kong's rate-limiting-advanced. Scaled adds the estimate, and Shipped is what Tide does.
var (
	Kong    = Model{}
	Scaled  = Model{Estimate: true}
	Shipped = Model{Estimate: true, Early: true}
)

// A Scenario is one run: a cluster, its clients and what goes wrong.
type Scenario[S any] struct {
	Algorithm algorithms.Params
	Model     Model
	// Rate is the sync_rate.
	Rate time.Duration
	// Each is the parameters and the sync_rate of each node where they differ: the k-th node has
	// the k-th, and Algorithm and Rate where that is zero. Reloads change them while the run goes
	// on.
	Each    []Parameters
	Reloads []Reload
	// Nodes is how many there are. Weights is the share of the requests that each gets; nil stands
	// for equal ones.
	Nodes   int
	Weights []float64
	Load    Load
	// Cost is how many units each request takes; 0 stands for 1.
	Cost int64
	// Even spaces requests evenly where they otherwise come as a Poisson process.
	Even bool
	// Clients is how many share the load, each with a counter of its own; 0 stands for 1. The k-th
	// has a share in proportion to k^-Zipf.
	Clients int
	Zipf    float64
	// Sticky sends all requests of a client to one node.
	Sticky bool
	// Latency is the mean of the one-way time to the store; each message takes half of it to one
	// and a half times.
	Latency time.Duration
	// LostReplies is the share of the replies that never arrive, Duplicates that of the messages
	// that arrive once more, later.
	LostReplies, Duplicates float64
	// Skew is how far each node's clock is ahead of the store's; nil stands for none. Steps change
	// that while the run goes on.
	Skew  []time.Duration
	Steps []Step
	// Cuts, Restarts and Away happen at their times, counted from the start.
	Cuts     []Cut
	Restarts []Restart
	Away     []Away
	// Flushes are when the store forgets everything.
	Flushes []time.Duration
	// Warm is the time after which Peak, Mean and Wrong are measured.
	Warm time.Duration
	Seed uint64
}

// A Cut takes a node off the store for a time.
type Cut struct {
	Node     int
	From, To time.Duration
}

// Parameters are what one node's configuration says.
type Parameters struct {
	Algorithm algorithms.Params
	Rate      time.Duration
}

// A Reload gives a node other parameters at a time. Its counters stay.
type Reload struct {
	Node int
	At   time.Duration
	Parameters
}

// parameters are what a node starts with.
func (sc Scenario[S]) parameters(node int) Parameters {
	p := Parameters{sc.Algorithm, sc.Rate}
	if node < len(sc.Each) {
		p = p.with(sc.Each[node])
	}
	return p
}

func (sc Scenario[S]) cost() int64 { return max(1, sc.Cost) }

func (p Parameters) with(o Parameters) Parameters {
	if o.Algorithm != (algorithms.Params{}) {
		p.Algorithm = o.Algorithm
	}
	if o.Rate != 0 {
		p.Rate = o.Rate
	}
	return p
}

// A Restart replaces a node by a new process that knows nothing. Clean lets the old one send its
// last counts.
type Restart struct {
	Node  int
	At    time.Duration
	Clean bool
}

// Away is a time in which a node is not there: it ends in order at From, and begins as a new
// process at To.
type Away struct {
	Node     int
	From, To time.Duration
}

// A Step sets a node's clock by so much at a time.
type Step struct {
	Node int
	At   time.Duration
	By   time.Duration
}

// Run runs a scenario.
func (sc Scenario[S]) Run() Result {
	w := newWorld(sc)
	m := newMeter(sc)
	for a := range sc.arrivals {
		w.Until(a.at)
		d := w.nodes[a.node].take(a.of)
		m.count(a, d.Result)
	}
	w.Until(epoch + int64(sc.Load.length()))
	m.result.Calls = w.calls
	return m.done()
}

// On runs the load on nodes of the caller: until waits until so much time has passed
// since the start, and take is a request to a node.
func (sc Scenario[S]) On(until func(at time.Duration), take func(node, of int) algorithms.Result) Result {
	m := newMeter(sc)
	for a := range sc.arrivals {
		until(time.Duration(a.at - epoch))
		m.count(a, take(a.node, a.of))
	}
	return m.done()
}

// Exact runs the same requests against one counter for each client that all nodes share without
// delay. Its calls are those of sync_rate strict.
func (sc Scenario[S]) Exact() Result {
	states := make([]S, max(1, sc.Clients))
	m := newMeter(sc)
	f := newSharedCalls(2 * sc.Latency)
	exact, limit := algorithms.MachineOf[S](sc.Algorithm.Kind), sc.Algorithm.Compile()
	for a := range sc.arrivals {
		f.ask(a)
		m.count(a, exact.Take(&states[a.of], limit, a.at, sc.cost(), 0))
	}
	m.result.Calls = f.calls
	return m.done()
}
