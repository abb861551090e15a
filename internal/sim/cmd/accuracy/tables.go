package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/sim/scenario"
)

const (
	ms = time.Millisecond
	// near is the one-way time to a store in the same rack.
	near = 500 * time.Microsecond
)

// tables are the sections of the pages that are simulated.
var tables = map[string]func() (string, error){
	"scenarios": simulated(scenarios),
	"rates":     simulated(rates),
	"small":     simulated(small),
	"faults":    simulated(faults),
	"windows":   simulated(windows),
	"lumps":     simulated(lumps),
}

func simulated(table func() *grid) func() (string, error) {
	return func() (string, error) { return table().String(), nil }
}

func pair(f scenario.Figure) string { return fmt.Sprintf("%.2f / %.2f", f.Peak, f.Mean) }

// scenarios are those that limiters are compared by, step by step from Kong's model to Tide.
func scenarios() *grid {
	g := newGrid("scenario", "centralized limiter", "Kong's model", "+ estimate (`early_sync off`)", "+ early sync (Tide)")
	for _, c := range scenario.Common() {
		g.row(c.Name, pair(c.Ideal(seeds)), pair(c.Figures(scenario.Kong, seeds)), pair(c.Figures(scenario.Scaled, seeds)), pair(c.Figures(scenario.Shipped, seeds)))
	}
	return g
}

// perMinute is five nodes and 600 a minute, as a sync_rate is to be chosen for.
func perMinute(rate time.Duration, load scenario.Load, warm time.Duration) scenario.Case {
	return scenario.CaseOf("", scenario.Windows{Algorithm: scenario.Sliding(600, time.Minute), Rate: rate, Nodes: 5, Latency: near, Warm: warm, Load: load})
}

// rates is what a sync_rate buys and costs, in a table each for the two loads and for the cost.
func rates() *grid {
	models := []string{"`sync_rate`", "Tide", "`early_sync off`", "Kong's model"}
	cold, steady, syncs := newGrid(models...), newGrid(models...), newGrid("`sync_rate`", "at 0.3x", "at 2x")
	over := func(f scenario.Figure) string { return fmt.Sprintf("%+.1f %%", 100*(f.PeakOver-1)) }
	for _, rate := range []time.Duration{100 * ms, 250 * ms, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second} {
		name := "`" + rate.String() + "`"
		start := perMinute(rate, scenario.Load{{For: 30 * time.Second}, {For: 20 * time.Second, Rate: 500}}, 0)
		on := perMinute(rate, scenario.Constant(20, 300*time.Second), 120*time.Second)
		quiet := perMinute(rate, scenario.Constant(3, 300*time.Second), 0)
		o := on.Figures(scenario.Shipped, seeds)
		cold.row(name, over(start.Figures(scenario.Shipped, seeds)), over(start.Figures(scenario.Scaled, seeds)), over(start.Figures(scenario.Kong, seeds)))
		steady.row(name, over(o), over(on.Figures(scenario.Scaled, seeds)), over(on.Figures(scenario.Kong, seeds)))
		syncs.row(name, fmt.Sprintf("%.1f", quiet.Figures(scenario.Shipped, seeds).Calls), fmt.Sprintf("%.1f", o.Calls))
	}
	g := &grid{}
	fmt.Fprintf(g, "Overshoot after a cold start at 50x:\n\n%s\nOvershoot at a steady 2x:\n\n%s\nSyncs a second:\n\n%s", cold, steady, syncs)
	return g
}

// small are counts of requests.
func small() *grid {
	g := newGrid("limit, nodes, rate of the client", "centralized limiter", "Kong's model", "Tide")
	count := func(f scenario.Figure) string { return fmt.Sprintf("%.0f (%.0f)", f.Admitted, f.Most) }
	for _, c := range scenario.Small() {
		g.row(c.Name, count(c.Ideal(seeds)), count(c.Figures(scenario.Kong, seeds)), count(c.Figures(scenario.Shipped, seeds)))
	}
	return g
}

func faults() *grid {
	g := newGrid("what goes wrong", "centralized limiter", "Kong's model", "Tide", "highest peak of all runs")
	for _, c := range scenario.Faulty() {
		tide := c.Figures(scenario.Shipped, seeds)
		g.row(c.Name, pair(c.Ideal(seeds)), pair(c.Figures(scenario.Kong, seeds)), pair(tide), fmt.Sprintf("%.2f", tide.Worst))
	}
	return g
}

// windows is the error of the algorithms themselves.
func windows() *grid {
	starts, lumps := []float64{.8, 1.5, 3, 20}, []time.Duration{5 * time.Second, 20 * time.Second}
	onset, again := []string{"a cold start, then"}, []string{"one limit at once"}
	for _, demand := range starts {
		onset = append(onset, fmt.Sprintf("%gx", demand))
	}
	for _, every := range lumps {
		again = append(again, fmt.Sprintf("every %v", every))
	}
	steady, bursts := newGrid(onset...), newGrid(again...)
	for _, a := range scenario.Approximations() {
		onset, again = []string{a.Name}, []string{a.Name}
		for _, demand := range starts {
			onset = append(onset, fmt.Sprintf("%.2f", a.Peak(scenario.Onset(demand))))
		}
		for _, every := range lumps {
			again = append(again, fmt.Sprintf("%.2f", a.Peak(scenario.Lumps(every))))
		}
		steady.row(onset...)
		bursts.row(again...)
	}
	g := &grid{}
	fmt.Fprintf(g, "%s\n%s", steady, bursts)
	return g
}

// lumps is the most that is admitted in any window where requests cost a part of the limit.
func lumps() *grid {
	g := newGrid("each request costs", "window, 4 nodes", "window, 10", "bucket, 10", "log, 10", "Kong's model, window, 10")
	for _, c := range scenario.EachCosts() {
		cells := []string{c.Name}
		for _, one := range []struct {
			kind  algorithms.Kind
			model scenario.Model
			nodes int
		}{
			{algorithms.SlidingWindow, scenario.Shipped, 4}, {algorithms.SlidingWindow, scenario.Shipped, 10},
			{algorithms.TokenBucket, scenario.Shipped, 10}, {algorithms.SlidingLog, scenario.Shipped, 10}, {algorithms.SlidingWindow, scenario.Kong, 10},
		} {
			got, exact, _, _ := costPeaks(c, one.kind, one.model, one.nodes, 5)
			cells = append(cells, fmt.Sprintf("%.2f (%.2f)", got, exact))
		}
		g.row(cells...)
	}
	return g
}

// costPeaks are the medians of several runs.
func costPeaks(c scenario.Costs, kind algorithms.Kind, model scenario.Model, nodes int, demand float64) (peak, exact, denied, exactDenied float64) {
	run := algorithms.ByState(kind, scenario.CostPeaks[algorithms.WindowState], scenario.CostPeaks[algorithms.BucketState], scenario.CostPeaks[algorithms.LogState])
	var all [4][]float64
	for seed := range uint64(seeds) {
		a, b, c, d := run(c, algorithms.Params{Kind: kind, Limit: 100_000, Window: time.Minute}, model, nodes, demand, seed)
		for i, v := range []float64{a, b, c, d} {
			all[i] = append(all[i], v)
		}
	}
	middle := func(i int) float64 {
		slices.Sort(all[i])
		return all[i][seeds/2]
	}
	return middle(0), middle(1), middle(2), middle(3)
}
