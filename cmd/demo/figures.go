package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
)

// What is measured. The windows of the steady load are so short that a run has several; the burst's
// is so long that it has one.
const (
	steadyLimit   = 500
	steadyWindow  = 5 * time.Second
	steadyWindows = 3
	steadyDemand  = 2 * steadyLimit // requests in a window
	// The last few requests are left out, so that a late one doesn't fall into one window more.
	steadySize  = steadyWindows*steadyDemand - steadyDemand/20
	burstLimit  = 1000
	burstSize   = 3000
	burstAtOnce = 60
)

// rates are the values of sync_rate.
var rates = []string{"0", "100ms", "1s", "-1"}

// algorithms are those of the steady load: the one that begins again with each window, and the
// default.
var algorithms = []string{"fixed_window", "sliding_window"}

// A figure is what came of one load at one sync_rate, in several runs.
type figure struct {
	rate           string
	sent, admitted []int
	denied         []int
	took           []time.Duration
}

// figures measures everything and prints the tables.
func figures(ctx context.Context, o options, program string, store store, out io.Writer) error {
	c, err := cluster.Start(ctx, cluster.Options{Program: program, Nodes: 3, Port: o.port, Caddyfile: measured(store, o.runs)})
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Fprintf(out, "Three Caddy processes and %s on one machine: %d CPUs, %s/%s, %s; %d runs each.\n",
		store.name, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), o.runs)
	for _, algorithm := range algorithms {
		all, err := measure(o.runs, func(rate string, run int) (result, error) {
			return steady(ctx, c, zoneName(algorithm, rate, run))
		})
		if err != nil {
			return err
		}
		title := fmt.Sprintf("Steady overload: `%s`, limit %d/%s, %d requests a second through %d windows",
			algorithm, steadyLimit, steadyWindow, steadyDemand/int(steadyWindow.Seconds()), steadyWindows)
		printTable(out, title, steadyWindows*steadyLimit, all)
	}
	all, err := measure(o.runs, func(rate string, run int) (result, error) {
		return burst(ctx, c, zoneName("burst", rate, run))
	})
	if err != nil {
		return err
	}
	title := fmt.Sprintf("Burst: `fixed_window`, limit %d in one window, %d requests as fast as %d connections send them", burstLimit, burstSize, burstAtOnce)
	printTable(out, title, burstLimit, all)
	return c.Stop()
}

// measured is a configuration with a zone of its own for each run of each figure, so that none
// begins with another's counts.
func measured(store store, runs int) string {
	var zones strings.Builder
	zone := func(name, rate, limit, algorithm string) {
		fmt.Fprintf(&zones, "\t\tzone %s {\n\t\t\tmatch {\n\t\t\t\tpath /%s\n\t\t\t}\n\t\t\tlimit %s\n\t\t\talgorithm %s\n\t\t\tsync_rate %s\n\t\t}\n",
			name, name, limit, algorithm, rate)
	}
	for _, rate := range rates {
		for run := range runs {
			for _, algorithm := range algorithms {
				zone(zoneName(algorithm, rate, run), rate, fmt.Sprintf("%d/%s", steadyLimit, steadyWindow), algorithm)
			}
			zone(zoneName("burst", rate, run), rate, fmt.Sprintf("%d/30d", burstLimit), "fixed_window")
		}
	}
	return fmt.Sprintf("{\n\tadmin {{.Admin}}\n\tdefault_bind 127.0.0.1\n\tgrace_period 2s\n\trate_limit {\n\t\tredis %s\n\t}\n}\n"+
		"http://:{{.Port}} {\n\trate_limit {\n%s\t}\n\trespond ok\n}\n", store.url, &zones)
}

func zoneName(load, rate string, run int) string { return fmt.Sprintf("%s_%s_%d", load, rate, run) }

// result is what came of one run.
type result struct {
	*cluster.Tally
	took time.Duration
}

// measure runs a load several times at each rate, the rates in turn, so that a noisy minute of the
// machine is not one rate's alone.
func measure(runs int, load func(rate string, run int) (result, error)) ([]figure, error) {
	all := make([]figure, len(rates))
	for run := range runs {
		for i, rate := range rates {
			r, err := load(rate, run)
			if err != nil {
				return nil, err
			}
			f := &all[i]
			f.rate = rate
			f.sent, f.admitted, f.denied = append(f.sent, r.Sent()), append(f.admitted, r.Admitted()), append(f.denied, r.Denied())
			f.took = append(f.took, r.took)
		}
	}
	return all, nil
}

// steady sends twice the limit, evenly, from the beginning of a window on.
func steady(ctx context.Context, c *cluster.Cluster, zone string) (result, error) {
	boundary := time.Until(time.Now().Truncate(steadyWindow).Add(steadyWindow))
	select {
	case <-ctx.Done():
		return result{}, ctx.Err()
	case <-time.After(boundary):
	}
	client := cluster.NewClient(100)
	defer client.Close()
	tally, start := new(cluster.Tally), time.Now()
	client.Steady(ctx, c.Nodes, "/"+zone, steadyDemand/steadyWindow.Seconds(), steadySize, anyOf(c), tally)
	return finished(ctx, tally, start)
}

// burst sends all at once.
func burst(ctx context.Context, c *cluster.Cluster, zone string) (result, error) {
	client := cluster.NewClient(burstAtOnce)
	defer client.Close()
	start := time.Now()
	return finished(ctx, client.Burst(ctx, c.Nodes, "/"+zone, burstSize, nil), start)
}

func anyOf(c *cluster.Cluster) func(int) int {
	return func(int) int { return rand.IntN(len(c.Nodes)) }
}

func finished(ctx context.Context, tally *cluster.Tally, start time.Time) (result, error) {
	if err := ctx.Err(); err != nil {
		return result{}, err
	}
	if n, first := tally.Errors(); n > 0 {
		return result{}, fmt.Errorf("%d requests had no answer, the first: %w", n, first)
	}
	return result{tally, time.Since(start)}, nil
}

// printTable prints figures as Markdown.
func printTable(out io.Writer, title string, allowed int, all []figure) {
	fmt.Fprintf(out, "\n%s. The limit allows %d.\n\n", title, allowed)
	fmt.Fprintln(out, "| `sync_rate` | sent | admitted | denied | admitted / limit | took |\n|---|---|---|---|---|---|")
	for _, f := range all {
		shares := fmt.Sprintf("%.3f", share(slices.Min(f.admitted), allowed))
		if most := slices.Max(f.admitted); most != slices.Min(f.admitted) {
			shares += fmt.Sprintf(" to %.3f", share(most, allowed))
		}
		fmt.Fprintf(out, "| `%s` | %s | %s | %s | %s | %.1f s |\n",
			f.rate, between(f.sent), between(f.admitted), between(f.denied), shares, slices.Max(f.took).Seconds())
	}
}

func share(n, of int) float64 { return float64(n) / float64(of) }

// between is the least and the most of several runs.
func between(runs []int) string {
	least, most := slices.Min(runs), slices.Max(runs)
	if least == most {
		return fmt.Sprint(least)
	}
	return fmt.Sprintf("%d to %d", least, most)
}
