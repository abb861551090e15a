// Package validate has scenarios that can be simulated and measured on real processes, to hold the
// simulator to what it predicts.
package validate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/sim/scenario"
)

// Nodes is how many nodes all scenarios have.
const Nodes = 3

// A Scenario is a client of a cluster with a limit of its own.
type Scenario struct {
	// Name is that of its zone; Says is for people.
	Name, Says string
	Limit      int64
	Cost       int64 // of each request
	Window     time.Duration
	Rate       time.Duration
	Load       scenario.Load
}

// far is a window whose boundary no run sees, except for one at the turn of 30 days.
const far = 30 * 24 * time.Hour

// Scenarios differ most between Kong's model and a centralized limiter: overload, a burst after a
// cold start, a client that goes from node to node, and requests that cost a part of the limit.
func Scenarios() []Scenario {
	const sec = time.Second
	return []Scenario{
		{"overload", "4x the limit of 400/4s for two windows, `sync_rate 1s`", 400, 1, 4 * sec, sec, scenario.Constant(400, 8*sec)},
		{"burst", "1200 requests within 3 s, of which 400 are allowed, `sync_rate 5s`", 400, 1, far, 5 * sec, scenario.Constant(400, 3*sec)},
		{"wandering", "100 a second, 2 s to each of three nodes, of which 150 are allowed, `sync_rate 5s`", 150, 1, far, 5 * sec, scenario.Wandering(100, 2*sec, Nodes, 3)},
		{"lumps", "requests that each cost 2 % of a limit of 20000/4s, 4x the limit for two windows, `sync_rate 1s`", 20000, 400, 4 * sec, sec, scenario.Constant(50, 8*sec)},
	}
}

// Case is the simulation of it, with so long a way to the store.
func (s Scenario) Case(latency time.Duration) scenario.Case {
	return scenario.CaseOf(s.Says, scenario.Windows{
		Algorithm: scenario.Sliding(s.Limit, s.Window), Rate: s.Rate, Nodes: Nodes, Latency: latency, Load: s.Load, Cost: s.Cost, Even: true,
	})
}

// A Range is the least and the most that was admitted in several runs.
type Range struct{ Least, Most int }

// Add counts a run.
func (r *Range) Add(n int) {
	if r.Most == 0 || n < r.Least {
		r.Least = n
	}
	r.Most = max(r.Most, n)
}

func (r Range) String() string {
	if r.Least == r.Most {
		return fmt.Sprint(r.Least)
	}
	return fmt.Sprintf("%d to %d", r.Least, r.Most)
}

// Predict is what the simulation admits, in ten runs with each of some latencies: a message between
// processes that share two busy processors takes from a fraction of a millisecond to some ten.
func (s Scenario) Predict(m scenario.Model) (r Range) {
	for _, latency := range []time.Duration{250 * time.Microsecond, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		c := s.Case(latency)
		for seed := range uint64(10) {
			r.Add(c.Run(m, seed).Admitted)
		}
	}
	return r
}

// Allowed is what real processes may admit: what is predicted, and a quarter of the limit more or
// less. So many requests come in 0.2 to 0.4 s, and so long a process may stand still on a busy
// machine, with a sync or a request in its hands.
func (s Scenario) Allowed() Range {
	r, stall := s.Predict(scenario.Shipped), int(s.Limit/s.Cost/4)
	return Range{r.Least - stall, r.Most + stall}
}

// Exact is what one counter admits.
func (s Scenario) Exact() (r Range) {
	for seed := range uint64(10) {
		r.Add(s.Case(time.Millisecond).Exact(seed).Admitted)
	}
	return r
}

// Zone is the scenario's zone in a Caddyfile, for requests to a path; options are further lines of
// it.
func (s Scenario) Zone(name, options string) string {
	if s.Cost > 1 {
		options += fmt.Sprintf("\ncost %d", s.Cost)
	}
	return fmt.Sprintf("zone %s {\nmatch {\npath /%s\n}\nlimit %d/%s\n%s\n}\n", name, name, s.Limit, s.Window, options)
}

// Measure sends the load to a zone, from the boundary of a window on where the run sees one, and
// returns what came of it.
func (s Scenario) Measure(ctx context.Context, client *cluster.Client, nodes []*cluster.Node, zone string) (*cluster.Tally, error) {
	if s.Window < far {
		boundary := time.NewTimer(time.Until(time.Now().Truncate(s.Window).Add(s.Window)))
		defer boundary.Stop()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-boundary.C:
		}
	}
	tally := new(cluster.Tally)
	for _, phase := range s.Load {
		requests := int(phase.Rate * phase.For.Seconds())
		client.Steady(ctx, nodes, "/"+zone, phase.Rate, requests, func(int) int { return pick(phase.To) }, tally)
	}
	if failed, first := tally.Errors(); failed > 0 {
		return nil, fmt.Errorf("%d requests had no answer, the first: %w", failed, first)
	}
	return tally, ctx.Err()
}

// pick is a random node, by shares that sum up to 1; equal ones without.
func pick(shares []float64) int {
	if shares == nil {
		return rand.IntN(Nodes)
	}
	x := rand.Float64()
	for i, share := range shares {
		if x -= share; x < 0 {
			return i
		}
	}
	return len(shares) - 1
}
