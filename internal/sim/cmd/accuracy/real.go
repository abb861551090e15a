package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/sim/scenario"
	"github.com/caddy-tide/ratelimit/internal/sim/validate"
)

// realRuns is how often each scenario is measured.
const realRuns = 3

// A variant is a way to run a scenario: the name of its zones, their options, and the model that is
// to predict it.
type variant struct {
	name, options string
	model         *scenario.Model // nil is one centralized limiter
}

var variants = []variant{
	{"strict", "sync_rate strict", nil},
	{"off", "early_sync off", &scenario.Scaled},
	{"tide", "", &scenario.Shipped},
}

// measured runs the scenarios on real processes.
func measured(ctx context.Context) (string, error) {
	dir, err := os.MkdirTemp("", "tide")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	server, err := exec.LookPath("redis-server")
	if err != nil {
		return "", err
	}
	program, err := cluster.Build(ctx, dir, cluster.Caddy)
	if err != nil {
		return "", err
	}
	url, stop, err := cluster.StartRedis(ctx, server, dir)
	if err != nil {
		return "", err
	}
	defer stop()
	c, err := cluster.Start(ctx, cluster.Options{Program: program, Nodes: validate.Nodes, Caddyfile: caddyfile(url)})
	if err != nil {
		return "", err
	}
	defer c.Close()
	out := fmt.Sprintf("Three Caddy processes, a redis-server and the client on one machine with %d CPUs (%s, %s,\n%s); %d runs each.\n\n",
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), realRuns)
	g := newGrid("scenario", "Kong's model, simulated", "centralized limiter, simulated", "`strict`, measured", "`early_sync off`, simulated", "measured", "Tide, simulated", "measured")
	client := cluster.NewClient(50)
	defer client.Close()
	for _, s := range validate.Scenarios() {
		cells := []string{s.Says, s.Predict(scenario.Kong).String()}
		for _, v := range variants {
			predicted := s.Exact()
			if v.model != nil {
				predicted = s.Predict(*v.model)
			}
			got, err := repeat(ctx, s, v, client, c)
			if err != nil {
				return "", err
			}
			cells = append(cells, predicted.String(), got.String())
		}
		g.row(cells...)
	}
	return out + g.String(), c.Stop()
}

// repeat measures a variant of a scenario several times, each in a zone of its own.
func repeat(ctx context.Context, s validate.Scenario, v variant, client *cluster.Client, c *cluster.Cluster) (r validate.Range, err error) {
	for run := range realRuns {
		tally, err := s.Measure(ctx, client, c.Nodes, zoneName(s, v, run))
		if err != nil {
			return r, err
		}
		r.Add(tally.Admitted())
	}
	return r, nil
}

func zoneName(s validate.Scenario, v variant, run int) string {
	return fmt.Sprintf("%s_%s_%d", s.Name, v.name, run)
}

// caddyfile has a zone for each run, so that none begins with another's counts.
func caddyfile(url string) string {
	var zones strings.Builder
	for _, s := range validate.Scenarios() {
		for _, v := range variants {
			for run := range realRuns {
				options := v.options
				if v.model != nil {
					options += "\nsync_rate " + s.Rate.String()
				}
				zones.WriteString(s.Zone(zoneName(s, v, run), strings.TrimSpace(options)))
			}
		}
	}
	return fmt.Sprintf("{\nadmin {{.Admin}}\ndefault_bind 127.0.0.1\ngrace_period 2s\nrate_limit {\nredis %s\n}\n}\nhttp://:{{.Port}} {\nrate_limit {\n%s}\nrespond ok\n}\n", url, &zones)
}
