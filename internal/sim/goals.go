package sim

import (
	"fmt"
	"time"
)

// A Goal is a figure to reach.
type Goal struct {
	Name string
	// Model is the one that is to reach it, and Reach says what is to be reached.
	Model Model
	Reach string
	// Measure returns how near a model comes, over some seeds.
	Measure func(m Model, seeds int) Reached
}

// Reached is a figure, and whether it is good enough.
type Reached struct {
	Text string
	Met  bool
}

// Goals are the figures that Tide was built to reach.
func Goals() []Goal {
	common := Common()
	return []Goal{
		{"10 nodes, 1000/5s, `sync_rate 500ms`, offered load 1.6x, `early_sync off`", Scaled, "peak at most 1.05, mean 0.97 to 1.02, as many syncs", steadily(common[0], 1.05, 1, 1)},
		{"same, offered load 5x", Scaled, "peak at most 1.18, mean 0.97 to 1.02, as many syncs", steadily(common[1], 1.18, 1, 1)},
		{"same, offered load 5x, `early_sync on`", Shipped, "peak at most 1.05, mean 0.97 to 1.02, at most 10x the syncs, and 1/5 of `sync_rate strict`'s", steadily(common[1], 1.05, 10, .2)},
		{"2 nodes, 500/1s, `sync_rate 200ms`, offered load 1.6x", Shipped, "peak at most 1.05, mean 0.97 to 1.02", steadily(common[2], 1.05, 100, 1)},
		{"10 nodes, 1000/10s, `sync_rate 1s`, step to 20x", Shipped, "peak at most 1.05x, mean at most 1.02x the centralized limiter's", surging(common[3])},
		{"8 nodes, 100/60s, `sync_rate 10s`, offered load 20x, for 10 minutes", Shipped, "admitted at most 1.05x the centralized limiter's", flooding(common[6])},
		{"offered load 0.5x and 0.8x, limits of 400 and more, 2 to 30 nodes, `sync_rate` 100 ms to 5 s", Shipped, "none denied", below([]int64{400, 1000, 10_000}, clusters, 0)},
		{"same, limits of 10 to 100", Shipped, "at most 1 % more denied than by the centralized limiter", below([]int64{10, 30, 100}, clusters, .01)},
		{"bursts, mean load 0.85x", Shipped, "mean at least 0.97 of the centralized limiter's", bursty},
		{"one node of 3 cut off, offered load 1.5x", Shipped, "at most one limit more than without the cut", cutOff},
	}
}

// steadily is a peak and a mean at a steady load, with at most so many times the syncs of
// Kong's model, and so many times those of sync_rate strict.
func steadily(c Case, peak, calls, strict float64) func(Model, int) Reached {
	return func(m Model, seeds int) Reached {
		f, kong, exact := c.Figures(m, seeds), c.Figures(Kong, seeds), c.Ideal(seeds)
		return Reached{
			fmt.Sprintf("%.2f / %.2f, %.0f syncs/s; %.0f with `sync_rate strict`", f.Peak, f.Mean, f.Calls, exact.Calls),
			f.Peak <= peak && f.Mean >= .97 && f.Mean <= 1.02 && f.Calls <= calls*kong.Calls && f.Calls <= strict*exact.Calls,
		}
	}
}

func surging(c Case) func(Model, int) Reached {
	return func(m Model, seeds int) Reached {
		f := c.Figures(m, seeds)
		return Reached{fmt.Sprintf("%.2f / %.2f, which is %.3fx / %.3fx", f.Peak, f.Mean, f.PeakOver, f.MeanOver), f.PeakOver <= 1.05 && f.MeanOver <= 1.02}
	}
}

func flooding(c Case) func(Model, int) Reached {
	return func(m Model, seeds int) Reached {
		f := c.Figures(m, seeds)
		return Reached{fmt.Sprintf("%.0f requests, %.3fx", f.Admitted, f.AdmittedOver), f.AdmittedOver <= 1.05}
	}
}

// A cluster is a number of nodes and a sync_rate.
type cluster struct {
	nodes int
	rate  time.Duration
}

var clusters = []cluster{
	{2, sec / 10}, {2, sec}, {2, 5 * sec}, {5, sec / 10}, {5, sec}, {5, 5 * sec}, {10, sec / 10}, {10, sec}, {10, 5 * sec}, {30, sec / 10}, {30, sec}, {30, 5 * sec},
}

// below is clusters below their limits: the most that any denies more than the centralized limiter,
// as a share of the requests.
func below(limits []int64, clusters []cluster, most float64) func(Model, int) Reached {
	return func(m Model, seeds int) Reached {
		worst := 0.0
		for _, limit := range limits {
			for _, c := range clusters {
				for _, demand := range []float64{.5, .8} {
					f := CaseOf("", Windows{
						Algorithm: Sliding(limit, 10*sec), Rate: c.rate, Nodes: c.nodes, Latency: near, Load: Constant(demand*float64(limit)/10, 60*sec),
					}).Figures(m, seeds)
					worst = max(worst, f.DeniedOver)
				}
			}
		}
		return Reached{fmt.Sprintf("%.2f %% more at worst", 100*worst), worst <= most}
	}
}

func bursty(m Model, seeds int) Reached {
	worst := 10.0
	for _, load := range []Load{Bursts(340, sec, 3*sec, 15), Bursts(8500, sec/10, 99*sec/10, 6), Bursts(170, 5*sec, 5*sec, 6)} {
		for _, nodes := range []int{3, 10} {
			f := CaseOf("", Windows{Algorithm: Sliding(1000, 10*sec), Rate: sec, Nodes: nodes, Latency: near, Warm: 20 * sec, Load: load}).Figures(m, seeds)
			worst = min(worst, f.MeanOver)
		}
	}
	return Reached{fmt.Sprintf("%.3f at least", worst), worst >= .97}
}

func cutOff(m Model, seeds int) Reached {
	cases := Faulty()
	whole, cut := cases[0].Figures(m, seeds), cases[len(cases)-1].Figures(m, seeds)
	return Reached{fmt.Sprintf("%.2f, without the cut %.2f", cut.Peak, whole.Peak), cut.Peak <= whole.Peak+1}
}
