package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/sim"
)

const (
	ms = time.Millisecond
	// near is the one-way time to a store in the same rack.
	near = 500 * time.Microsecond
)

// tables are the sections of the pages that are simulated.
var tables = map[string]func() (string, error){
	"goals":      simulated(goals),
	"scenarios":  simulated(scenarios),
	"cost":       simulated(cost),
	"traffic":    simulated(traffic),
	"rates":      simulated(rates),
	"algorithms": simulated(kinds),
	"small":      simulated(small),
	"distant":    simulated(distant),
	"faults":     simulated(faults),
	"rollouts":   simulated(rollouts),
	"windows":    simulated(windows),
	"flood":      simulated(flood),
	"mixed":      simulated(mixed),
	"lumps":      simulated(lumps),
	"sizes":      simulated(sizes),
}

func simulated(table func() *grid) func() (string, error) {
	return func() (string, error) { return table().String(), nil }
}

func pair(f sim.Figure) string { return fmt.Sprintf("%.2f / %.2f", f.Peak, f.Mean) }

// goals is what was to be reached, and what is.
func goals() *grid {
	g := newGrid("scenario", "Kong's model", "to reach", "Tide", "")
	for _, goal := range sim.Goals() {
		kong, tide := goal.Measure(sim.Kong, seeds), goal.Measure(goal.Model, seeds)
		met := "reached"
		if !tide.Met {
			met = "missed"
		}
		g.row(goal.Name, kong.Text, goal.Reach, tide.Text, met)
	}
	return g
}

// scenarios are those that limiters are compared by, step by step from Kong's model to Tide.
func scenarios() *grid {
	g := newGrid("scenario", "centralized limiter", "Kong's model", "+ estimate (`early_sync off`)", "+ early sync (Tide)")
	for _, c := range sim.Common() {
		g.row(c.Name, pair(c.Ideal(seeds)), pair(c.Figures(sim.Kong, seeds)), pair(c.Figures(sim.Scaled, seeds)), pair(c.Figures(sim.Shipped, seeds)))
	}
	return g
}

// cost is how many calls a second the store gets for the one client of these.
func cost() *grid {
	g := newGrid("scenario", "`sync_rate strict`", "Kong's model", "`early_sync off`", "Tide")
	calls := func(f sim.Figure) string { return fmt.Sprintf("%.0f", f.Calls) }
	for _, c := range sim.Common() {
		g.row(c.Name, calls(c.Ideal(seeds)), calls(c.Figures(sim.Kong, seeds)), calls(c.Figures(sim.Scaled, seeds)), calls(c.Figures(sim.Shipped, seeds)))
	}
	return g
}

// traffic has all that a run reports.
func traffic() *grid {
	g := newGrid("traffic", "centralized limiter", "Kong's model", "Tide", "wrongly denied", "first denial, Kong's model", "Tide", "syncs/s (keys/s), Kong's model", "Tide")
	late := func(f sim.Figure) string {
		if f.Late == 0 {
			return "—"
		}
		return fmt.Sprintf("%+d ms", f.Late.Milliseconds())
	}
	load := func(f sim.Figure) string { return fmt.Sprintf("%.0f (%.0f)", f.Calls, f.Keys) }
	for _, c := range sim.Traffics() {
		exact, kong, tide := c.Ideal(seeds), c.Figures(sim.Kong, seeds), c.Figures(sim.Shipped, seeds)
		g.row(c.Name, pair(exact), pair(kong), pair(tide), fmt.Sprintf("%.1f %%", 100*tide.Wrong), late(kong), late(tide), load(kong), load(tide))
	}
	return g
}

// perMinute is five nodes and 600 a minute, as a sync_rate is to be chosen for.
func perMinute(rate time.Duration, load sim.Load, warm time.Duration) sim.Case {
	return sim.CaseOf("", sim.Windows{Algorithm: sim.Sliding(600, time.Minute), Rate: rate, Nodes: 5, Latency: near, Warm: warm, Load: load})
}

// rates is what a sync_rate buys and costs, in a table each for the two loads and for the cost.
func rates() *grid {
	models := []string{"`sync_rate`", "Tide", "`early_sync off`", "Kong's model"}
	cold, steady, syncs := newGrid(models...), newGrid(models...), newGrid("`sync_rate`", "at 0.3x", "at 2x")
	over := func(f sim.Figure) string { return fmt.Sprintf("%+.1f %%", 100*(f.PeakOver-1)) }
	for _, rate := range []time.Duration{100 * ms, 250 * ms, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second} {
		name := "`" + rate.String() + "`"
		start := perMinute(rate, sim.Load{{For: 30 * time.Second}, {For: 20 * time.Second, Rate: 500}}, 0)
		on := perMinute(rate, sim.Constant(20, 300*time.Second), 120*time.Second)
		quiet := perMinute(rate, sim.Constant(3, 300*time.Second), 0)
		o := on.Figures(sim.Shipped, seeds)
		cold.row(name, over(start.Figures(sim.Shipped, seeds)), over(start.Figures(sim.Scaled, seeds)), over(start.Figures(sim.Kong, seeds)))
		steady.row(name, over(o), over(on.Figures(sim.Scaled, seeds)), over(on.Figures(sim.Kong, seeds)))
		syncs.row(name, fmt.Sprintf("%.1f", quiet.Figures(sim.Shipped, seeds).Calls), fmt.Sprintf("%.1f", o.Calls))
	}
	g := &grid{}
	fmt.Fprintf(g, "Overshoot after a cold start at 50x:\n\n%s\nOvershoot at a steady 2x:\n\n%s\nSyncs a second:\n\n%s", cold, steady, syncs)
	return g
}

// kinds are all algorithms at several intervals.
func kinds() *grid {
	const nodes = 5
	intervals := []time.Duration{100 * ms, time.Second, 5 * time.Second}
	g := newGrid("algorithm, offered load", "centralized limiter", "`100ms`", "`1s`", "`5s`", "`1s`, `early_sync off`", "`1s`, Kong's model")
	for _, demand := range []float64{.8, 1.6, 5} {
		at := func(rate time.Duration, i int) sim.Case { return sim.Kinds(nodes, rate, demand)[i] }
		for i, c := range sim.Kinds(nodes, time.Second, demand) {
			cells := []string{fmt.Sprintf("%s, %gx", c.Name, demand), pair(c.Ideal(seeds))}
			for _, rate := range intervals {
				cells = append(cells, pair(at(rate, i).Figures(sim.Shipped, seeds)))
			}
			g.row(append(cells, pair(c.Figures(sim.Scaled, seeds)), pair(c.Figures(sim.Kong, seeds)))...)
		}
	}
	return g
}

// small are counts of requests.
func small() *grid {
	g := newGrid("limit, nodes, rate of the client", "centralized limiter", "Kong's model", "Tide")
	count := func(f sim.Figure) string { return fmt.Sprintf("%.0f (%.0f)", f.Admitted, f.Most) }
	for _, c := range sim.Small() {
		g.row(c.Name, count(c.Ideal(seeds)), count(c.Figures(sim.Kong, seeds)), count(c.Figures(sim.Shipped, seeds)))
	}
	return g
}

func distant() *grid {
	g := newGrid("algorithm, offered load", "centralized limiter", "1 ms", "10 ms", "40 ms", "100 ms")
	for i := range sim.Distant(1, near) {
		for _, demand := range []float64{.8, 1.6} {
			c := sim.Distant(demand, near)[i]
			cells := []string{fmt.Sprintf("%s, %gx", c.Name, demand), pair(c.Ideal(seeds))}
			for _, latency := range []time.Duration{near, 5 * ms, 20 * ms, 50 * ms} {
				cells = append(cells, pair(sim.Distant(demand, latency)[i].Figures(sim.Shipped, seeds)))
			}
			g.row(cells...)
		}
	}
	return g
}

func faults() *grid {
	g := newGrid("what goes wrong", "centralized limiter", "Kong's model", "Tide", "highest peak of all runs")
	for _, c := range sim.Faulty() {
		tide := c.Figures(sim.Shipped, seeds)
		g.row(c.Name, pair(c.Ideal(seeds)), pair(c.Figures(sim.Kong, seeds)), pair(tide), fmt.Sprintf("%.2f", tide.Worst))
	}
	return g
}

// rollouts are nodes whose parameters differ.
func rollouts() *grid {
	const runs = 3
	g := newGrid("nodes and what happens", "of what the most generous parameters admit from one store, at most", "of what the least generous do, at least")
	for _, r := range sim.Rollouts("token_bucket") {
		highest, lowest := 0.0, 100.0
		for seed := range uint64(runs) {
			most, least := r.Within(seed)
			highest, lowest = max(highest, most), min(lowest, least)
		}
		g.row(r.Name, fmt.Sprintf("%.2f", highest), fmt.Sprintf("%.2f", lowest))
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
	for _, a := range sim.Approximations() {
		onset, again = []string{a.Name}, []string{a.Name}
		for _, demand := range starts {
			onset = append(onset, fmt.Sprintf("%.2f", a.Peak(sim.Onset(demand))))
		}
		for _, every := range lumps {
			again = append(again, fmt.Sprintf("%.2f", a.Peak(sim.Lumps(every))))
		}
		steady.row(onset...)
		bursts.row(again...)
	}
	g := &grid{}
	fmt.Fprintf(g, "%s\n%s", steady, bursts)
	return g
}

// mixed is a zone with limits far apart, and what each client gets alone.
func mixed() *grid {
	g := newGrid("algorithm, limit", "centralized limiter", "Tide", "Tide, alone in its zone")
	for _, c := range []struct {
		name string
		kind algorithms.Kind
	}{{"sliding window", algorithms.SlidingWindow}, {"fixed window", algorithms.FixedWindow}, {"sliding log", algorithms.SlidingLog}, {"token bucket", algorithms.TokenBucket}} {
		clients := []sim.Client{{Limit: 5, Demand: 5}, {Limit: 50_000, Demand: 1.6}}
		both, exact := mixedShares(c.kind, clients)
		for i, one := range clients {
			alone, _ := mixedShares(c.kind, []sim.Client{one})
			g.row(fmt.Sprintf("%s, %d/1m at %gx", c.name, one.Limit, one.Demand), shareOf(exact[i]), shareOf(both[i]), shareOf(alone[0]))
		}
	}
	return g
}

func shareOf(s sim.Share) string { return fmt.Sprintf("%.2f / %.2f", s.Peak, s.Mean) }

// mixedShares are the medians of several runs, on five nodes.
func mixedShares(kind algorithms.Kind, clients []sim.Client) (got, exact []sim.Share) {
	of := algorithms.Params{Kind: kind, Limit: 60, Window: time.Minute}
	runs := make([][2][]sim.Share, mixedSeeds)
	for seed := range runs {
		runs[seed][0], runs[seed][1] = runMixed(of, clients, uint64(seed))
	}
	median := func(which, client int, figure func(sim.Share) float64) float64 {
		var all []float64
		for _, r := range runs {
			all = append(all, figure(r[which][client]))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	shares := func(which int) (all []sim.Share) {
		for i := range clients {
			all = append(all, sim.Share{
				Peak: median(which, i, func(s sim.Share) float64 { return s.Peak }),
				Mean: median(which, i, func(s sim.Share) float64 { return s.Mean }),
			})
		}
		return all
	}
	return shares(0), shares(1)
}

// mixedSeeds is how many runs a row of mixed has: a client with 50,000 a minute takes its time.
const mixedSeeds = 11

func runMixed(of algorithms.Params, clients []sim.Client, seed uint64) (got, exact []sim.Share) {
	const nodes = 5
	mixed := algorithms.ByState(of.Kind, sim.Mixed[algorithms.WindowState], sim.Mixed[algorithms.BucketState], sim.Mixed[algorithms.LogState])
	return mixed(of, clients, nodes, time.Second, seed)
}

func flood() *grid {
	g := newGrid("keys per shared counter", "attackers admitted", "newcomers denied, 1 request", "5 requests")
	for _, load := range []float64{.01, .1, .5, 1, 2, 8} {
		f := sim.Flood(load, 10)
		g.row(fmt.Sprintf("%g", load), fmt.Sprintf("%.1f %%", 100*f.Admitted), fmt.Sprintf("%.1f %%", 100*f.DeniedFirst), fmt.Sprintf("%.1f %%", 100*f.DeniedFive))
	}
	return g
}

// lumps is the most that is admitted in any window where requests cost a part of the limit.
func lumps() *grid {
	g := newGrid("each request costs", "window, 4 nodes", "window, 10", "bucket, 10", "log, 10", "Kong's model, window, 10")
	for _, c := range sim.EachCosts() {
		cells := []string{c.Name}
		for _, one := range []struct {
			kind  algorithms.Kind
			model sim.Model
			nodes int
		}{
			{algorithms.SlidingWindow, sim.Shipped, 4}, {algorithms.SlidingWindow, sim.Shipped, 10},
			{algorithms.TokenBucket, sim.Shipped, 10}, {algorithms.SlidingLog, sim.Shipped, 10}, {algorithms.SlidingWindow, sim.Kong, 10},
		} {
			got, exact, _, _ := costPeaks(c, one.kind, one.model, one.nodes, 5)
			cells = append(cells, fmt.Sprintf("%.2f (%.2f)", got, exact))
		}
		g.row(cells...)
	}
	return g
}

// sizes is which share of the requests is denied where they cost a part of the limit.
func sizes() *grid {
	g := newGrid("each request costs", "window, 0.8x", "bucket, 0.8x", "log, 0.8x", "window, 5x")
	share := func(c sim.Costs, kind algorithms.Kind, demand float64) string {
		_, _, got, exact := costPeaks(c, kind, sim.Shipped, 10, demand)
		return fmt.Sprintf("%.1f %% (%.1f %%)", 100*got, 100*exact)
	}
	for _, c := range sim.EachCosts() {
		g.row(c.Name, share(c, algorithms.SlidingWindow, .8), share(c, algorithms.TokenBucket, .8), share(c, algorithms.SlidingLog, .8), share(c, algorithms.SlidingWindow, 5))
	}
	return g
}

// costPeaks are the medians of several runs.
func costPeaks(c sim.Costs, kind algorithms.Kind, model sim.Model, nodes int, demand float64) (peak, exact, denied, exactDenied float64) {
	run := algorithms.ByState(kind, sim.CostPeaks[algorithms.WindowState], sim.CostPeaks[algorithms.BucketState], sim.CostPeaks[algorithms.LogState])
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
