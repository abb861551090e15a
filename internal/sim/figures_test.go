package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

const sec = time.Second

type windowed = Scenario[algorithms.WindowState]

func sliding(limit int64, window time.Duration) algorithms.SlidingWindow {
	return algorithms.SlidingWindow{Limit: limit, Window: window, Buckets: 1}
}

// design are the scenarios of design section 6.
var design = []struct {
	name string
	windowed
}{
	{"10 nodes, 1000/5s, sync 0.5s, demand 1.6x", windowed{Algorithm: sliding(1000, 5*sec), Rate: sec / 2, Nodes: 10, Latency: sec / 2000, Load: Constant(320, 40*sec), Warm: 10 * sec}},
	{"same, demand 5x", windowed{Algorithm: sliding(1000, 5*sec), Rate: sec / 2, Nodes: 10, Latency: sec / 2000, Load: Constant(1000, 40*sec), Warm: 10 * sec}},
	{"2 nodes, 500/1s, sync 0.2s, 800/s", windowed{Algorithm: sliding(500, sec), Rate: sec / 5, Nodes: 2, Latency: sec / 2000, Load: Constant(800, 20*sec), Warm: 3 * sec}},
	{"10 nodes, 1000/10s, sync 1s, step to 20x", windowed{Algorithm: sliding(1000, 10*sec), Rate: sec, Nodes: 10, Latency: sec / 2000, Load: Load{{15 * sec, 5}, {35 * sec, 2000}}, Warm: 15 * sec}},
	{"same, from nothing", windowed{Algorithm: sliding(1000, 10*sec), Rate: sec, Nodes: 10, Latency: sec / 2000, Load: Load{{15 * sec, 0}, {35 * sec, 2000}}, Warm: 15 * sec}},
	{"same, from 0.8x", windowed{Algorithm: sliding(1000, 10*sec), Rate: sec, Nodes: 10, Latency: sec / 2000, Load: Load{{15 * sec, 80}, {35 * sec, 2000}}, Warm: 15 * sec}},
}

// average runs a scenario under several seeds: the mean of the means, the mean and the highest of the peaks.
func average[S any](sc Scenario[S], run func(Scenario[S]) Result, seeds int) (peak, worst, mean, calls float64) {
	for seed := range seeds {
		sc.Seed = uint64(seed)
		r := run(sc)
		peak += r.Peak / float64(seeds)
		mean += r.Mean / float64(seeds)
		calls += r.Calls / float64(seeds)
		worst = max(worst, r.Peak)
	}
	return
}

func TestFigures(t *testing.T) {
	for _, c := range design {
		line := fmt.Sprintf("%-42s", c.name)
		p, w, m, _ := average(c.windowed, windowed.Exact, 5)
		line += fmt.Sprintf(" | %.2f (%.2f) / %.2f", p, w, m)
		for _, model := range []Model{Kong, Scaled, Shipped} {
			sc := c.windowed
			sc.Model = model
			p, w, m, calls := average(sc, windowed.Run, 5)
			line += fmt.Sprintf(" | %.2f (%.2f) / %.2f %4.0f/s", p, w, m, calls)
		}
		fmt.Println(line)
	}
}
