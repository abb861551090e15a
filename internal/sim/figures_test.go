package sim

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

var figures = flag.Bool("figures", false, "print the tables of docs/accuracy.md")

// TestFigures prints the tables of docs/accuracy.md: go test ./internal/sim -run TestFigures -figures -v
func TestFigures(t *testing.T) {
	if !*figures {
		t.Skip("prints tables; run with -figures")
	}
	const seeds = 5
	pair := func(f figure) string { return fmt.Sprintf("%.2f / %.2f", f.worst, f.mean) }

	fmt.Println("\n| scenario | exact store | plain | + estimate | + early exchange | calls/s |\n|---|---|---|---|---|---|")
	for _, c := range common() {
		shipped := c.figure(Shipped, seeds)
		fmt.Printf("| %s | %s | %s | %s | %s | %.0f |\n", c.name, pair(c.ideal(seeds)), pair(c.figure(Kong, seeds)),
			pair(c.figure(Scaled, seeds)), pair(shipped), shipped.calls)
	}

	demands := []float64{.8, 1.6, 5}
	fmt.Println("\n| algorithm | 0.8x exact | 0.8x | 1.6x exact | 1.6x | 5x exact | 5x |\n|---|---|---|---|---|---|---|")
	for i, c := range kinds(5, 1) {
		line := "| " + c.name
		for _, demand := range demands {
			c := kinds(5, demand)[i]
			line += " | " + pair(c.ideal(seeds)) + " | " + pair(c.figure(Shipped, seeds))
		}
		fmt.Println(line + " |")
	}

	fmt.Println("\n| limit, nodes, rate of the client | exact store | plain | as shipped |\n|---|---|---|---|")
	for _, c := range small() {
		fmt.Printf("| %s | %s | %s | %s |\n", c.name, admitted(c.exact), admitted(func(seed uint64) Result { return c.run(Kong, seed) }),
			admitted(func(seed uint64) Result { return c.run(Shipped, seed) }))
	}

	latencies := []time.Duration{near, 5 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond}
	fmt.Println("\n| algorithm, demand | exact | 1 ms | 10 ms | 40 ms | 100 ms |\n|---|---|---|---|---|---|")
	for i := range distant(1, near) {
		for _, demand := range []float64{.8, 1.6} {
			c := distant(demand, near)[i]
			line := fmt.Sprintf("| %s, %.1fx | %s", c.name, demand, pair(c.ideal(seeds)))
			for _, latency := range latencies {
				line += " | " + pair(distant(demand, latency)[i].figure(Shipped, seeds))
			}
			fmt.Println(line + " |")
		}
	}

	fmt.Println("\n| what goes wrong | exact store | plain | as shipped |\n|---|---|---|---|")
	for _, c := range faulty() {
		fmt.Printf("| %s | %s | %s | %s |\n", c.name, pair(c.ideal(seeds)), pair(c.figure(Kong, seeds)), pair(c.figure(Shipped, seeds)))
	}

	fmt.Println("\n| demand | buckets 1 | 2 | 4 | 8 | 16 |\n|---|---|---|---|---|---|")
	for _, demand := range []float64{1.5, 3, 20} {
		line := fmt.Sprintf("| %gx", demand)
		for _, n := range []int{1, 2, 4, 8, 16} {
			line += fmt.Sprintf(" | %.2f", ownError(n, demand))
		}
		fmt.Println(line + " |")
	}

	fmt.Println("\n| keys per cell of a row | attackers admitted | newcomers refused, 1 request | 5 requests |\n|---|---|---|---|")
	for _, load := range []float64{.125, .25, .5, 1, 2} {
		f := flood(load, 10)
		fmt.Printf("| %g | %.1f %% | %.1f %% | %.1f %% |\n", load, 100*f.admitted, 100*f.refusedFirst, 100*f.refusedFive)
	}
}

// admitted is how many requests were, over ten runs: the mean and the most.
func admitted(run func(seed uint64) Result) string {
	const seeds = 10
	sum, most := 0, 0
	for seed := range uint64(seeds) {
		n := run(seed).Admitted
		sum, most = sum+n, max(most, n)
	}
	return fmt.Sprintf("%.1f (%d)", float64(sum)/seeds, most)
}

// ownError is the worst that the weighted count of one exact store lets through, over starts anywhere in a window.
func ownError(buckets int, demand float64) (peak float64) {
	const limit, phases = 400, 32
	for i := range phases {
		start := time.Duration(i) * 10 * sec / phases
		sc := windows{
			Algorithm: algorithms.SlidingWindow{Limit: limit, Window: 10 * sec, Buckets: buckets},
			Nodes:     1, Rate: sec, Even: true,
			Load: Load{{start + time.Millisecond, 0}, {30 * sec, demand * limit / 10}},
		}
		peak = max(peak, sc.Exact().Peak)
	}
	return peak
}
