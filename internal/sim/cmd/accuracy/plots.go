package main

import (
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/plot"
	"github.com/caddy-tide/ratelimit/internal/sim/scenario"
)

// plots are the files of docs/accuracy, by name.
var plots = map[string]func() plot.Plot{
	"over-time": overTime,
	"by-rate":   byRate,
	"windows":   windowsPlot,
}

// The styles of the models are the same in all plots.
const (
	exactStyle = iota
	kongStyle
	tideStyle
	scaledStyle
)

// overTime is what is admitted while a client comes that asks for five times its limit.
func overTime() plot.Plot {
	const limit, window = 1000, 10 * time.Second
	c := scenario.CaseOf("", scenario.Windows{
		Algorithm: scenario.Sliding(limit, window), Rate: time.Second, Nodes: 10, Latency: near,
		Load: scenario.Load{{For: 15 * time.Second, Rate: 50}, {For: 45 * time.Second, Rate: 500}},
	})
	line := func(name string, style int, r scenario.Result) plot.Line {
		x, y := r.Windowed(limit, window, 250*ms)
		return plot.Line{Name: name, X: x, Y: y, Style: style}
	}
	return plot.Plot{
		Title:       "Admitted in the last 10 seconds, as a multiple of the limit",
		Description: "Ten nodes share 1000 requests in 10 seconds, with sync_rate 1s. A client asks for half of that, and from the 15th second on for five times as much. What Tide admits follows the centralized limiter.",
		X:           "seconds",
		Panels: []plot.Panel{{
			Y: "admitted / limit", Reference: 1, Name: "the limit",
			Lines: []plot.Line{
				line("centralized", exactStyle, c.Exact(1)),
				line("Kong's model", kongStyle, c.Run(scenario.Kong, 1)),
				line("Tide", tideStyle, c.Run(scenario.Shipped, 1)),
			},
		}},
	}
}

// errorsBy draws how much the models admit beyond the centralized limiter.
func errorsBy(title, description, x string, log bool, at []float64, of func(x float64) scenario.Case) plot.Plot {
	lines := []plot.Line{
		{Name: "Kong's model", Style: kongStyle}, {Name: "early_sync off", Style: scaledStyle}, {Name: "Tide", Style: tideStyle},
	}
	for i, m := range []scenario.Model{scenario.Kong, scenario.Scaled, scenario.Shipped} {
		l := &lines[i]
		l.X, l.Marked = at, true
		for _, x := range at {
			l.Y = append(l.Y, of(x).Figures(m, seeds).PeakOver)
		}
	}
	return plot.Plot{
		Title: title, Description: description, X: x, LogX: log,
		Panels: []plot.Panel{{Y: "peak / centralized peak", Low: .9, Reference: 1, Name: "centralized", Lines: lines}},
	}
}

func steady(rate time.Duration, nodes int, demand float64) scenario.Case {
	return scenario.CaseOf("", scenario.Windows{
		Algorithm: scenario.Sliding(1000, 10*time.Second), Rate: rate, Nodes: nodes, Latency: near, Warm: 20 * time.Second, Load: scenario.Constant(100*demand, 60*time.Second),
	})
}

func byRate() plot.Plot {
	return errorsBy("Error by sync_rate: 10 nodes, 1000/10s, offered load 2x", "The error of Kong's model grows with sync_rate; Tide's stays near that of the centralized limiter.",
		"sync_rate in seconds", true, []float64{.1, .2, .5, 1, 2, 5}, func(x float64) scenario.Case {
			return steady(time.Duration(x*float64(time.Second)), 10, 2)
		})
}

// windowsPlot is what the algorithms themselves admit, without any cluster.
func windowsPlot() plot.Plot {
	const limit, window = 400, 10 * time.Second
	panel := func(y string, load scenario.Load) plot.Panel {
		p := plot.Panel{Y: y, Reference: 1, Name: "the limit", High: 2.05}
		styles := map[string]int{"sliding_log": 0, "fixed_window": 1, "sliding_window": 2, "sub_windows 4": 3}
		for _, a := range scenario.Approximations() {
			name := strings.Trim(a.Name, "`")
			if _, ok := styles[name]; !ok {
				continue
			}
			x, admitted := a.Case(load).Exact(0).Windowed(limit, window, 100*ms)
			shown := 160 // up to where they differ most
			p.Lines = append(p.Lines, plot.Line{Name: name, X: x[:shown], Y: admitted[:shown], Style: styles[name]})
		}
		return p
	}
	return plot.Plot{
		Title: "What one centralized limiter admits in any 10 seconds, by algorithm",
		Description: "Above, a client comes at the sixth second and goes on at three times its limit; below it asks for the whole limit at once, at the eighth second and again five seconds later. " +
			"The fixed window admits twice the limit across a boundary, the sliding window less, finer buckets still less, and the log the limit.",
		X: "seconds",
		Panels: []plot.Panel{
			panel("at 3x from the 6th second", scenario.Onset(3)(6*time.Second)),
			panel("the limit at 8 s, again at 13 s", scenario.Lumps(5*time.Second)(8*time.Second)),
		},
	}
}
