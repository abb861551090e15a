package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/plot"
)

// The load of the outage: a client that asks each zone for eight times its limit, at all nodes
// alike.
const (
	outageLimit  = 250
	outageWindow = 5 * time.Second
	outageDemand = 8 * outageLimit / 5 // requests a second
)

// outageZones are the values of on_redis_loss that are compared, which are also names of zones.
var outageZones = []string{"local", "divide"}

// phases are how long the nodes serve before anything is drawn, and then with Redis, without it,
// and with it again.
type phases struct{ warm, before, away, after time.Duration }

var drawnPhases = phases{15 * time.Second, 10 * time.Second, 20 * time.Second, 20 * time.Second}

// seconds is what came of one zone, second by second.
type seconds struct {
	tally            *cluster.Tally
	admitted, denied []float64
}

// outage draws what nodes admit and deny while Redis is killed and comes back empty.
func outage(ctx context.Context, o options, program, dir string, redis store, out io.Writer) error {
	if redis.embedded {
		return errors.New("an outage needs a redis-server, as an embedded Redis can't be killed")
	}
	c, err := cluster.Start(ctx, cluster.Options{Program: program, Nodes: 3, Port: o.port, Caddyfile: outageCaddyfile(redis)})
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Fprintf(out, "Redis is killed after %s and back after %s more.\n", o.phases.before, o.phases.away)
	zones, err := sendThrough(ctx, c, o.phases, dir, redis)
	if err != nil {
		return err
	}
	for i, z := range zones {
		failed, first := z.tally.Errors()
		if failed > 0 || z.tally.Sent() != z.tally.Admitted()+z.tally.Denied() {
			return fmt.Errorf("%s: %d of %d requests had another answer than 200 and 429, or none: %w", outageZones[i], failed, z.tally.Sent(), first)
		}
		fmt.Fprintf(out, "on_redis_loss %s: %d requests, %d admitted, %d denied, no other answer\n", outageZones[i], z.tally.Sent(), z.tally.Admitted(), z.tally.Denied())
	}
	if err := os.WriteFile(o.outage, outagePlot(zones, o.phases).SVG(), 0o644); err != nil {
		return err
	}
	return c.Stop()
}

func outageCaddyfile(redis store) string {
	var zones strings.Builder
	for _, name := range outageZones {
		fmt.Fprintf(&zones, "\t\tzone %s {\n\t\t\tmatch path /%s\n\t\t\tlimit %d/%s\n\t\t\ton_redis_loss %s\n\t\t}\n", name, name, outageLimit, outageWindow, name)
	}
	return fmt.Sprintf("{\n\tadmin {{.Admin}}\n\tdefault_bind 127.0.0.1\n\tgrace_period 2s\n\trate_limit {\n\t\tredis %s\n\t}\n}\n"+
		"http://:{{.Port}} {\n\trate_limit {\n%s\t}\n\trespond ok\n}\n", redis.url, &zones)
}

// sendThrough sends requests to all zones while Redis goes and comes back.
func sendThrough(ctx context.Context, c *cluster.Cluster, p phases, dir string, redis store) ([]seconds, error) {
	sending, stop := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	zones := make([]seconds, len(outageZones))
	for i, name := range outageZones {
		zones[i].tally = new(cluster.Tally)
		client := cluster.NewClient(100)
		clients.Go(func() {
			defer client.Close()
			client.Steady(sending, c.Nodes, "/"+name, outageDemand, 0, func(i int) int { return i % len(c.Nodes) }, zones[i].tally)
		})
	}
	if err := record(ctx, p.warm, nil); err != nil {
		return nil, err
	}
	if err := record(ctx, p.before, zones); err != nil {
		return nil, err
	}
	redis.stop()
	if err := errors.Join(record(ctx, p.away, zones), reported(ctx, c, false)); err != nil {
		return nil, err
	}
	again, err := startStore(ctx, dir, false)
	if err != nil {
		return nil, err
	}
	defer again.stop()
	return zones, errors.Join(record(ctx, p.after, zones), reported(ctx, c, true))
}

// record notes each second of a phase what each zone has admitted and denied in it.
func record(ctx context.Context, phase time.Duration, zones []seconds) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	at := make([][2]int, len(zones))
	for i, z := range zones {
		at[i] = [2]int{z.tally.Admitted(), z.tally.Denied()}
	}
	for last := time.Now(); phase >= time.Second; phase -= time.Second {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			for i := range zones {
				z, was := &zones[i], at[i]
				at[i] = [2]int{z.tally.Admitted(), z.tally.Denied()}
				z.admitted = append(z.admitted, float64(at[i][0]-was[0])/now.Sub(last).Seconds())
				z.denied = append(z.denied, float64(at[i][1]-was[1])/now.Sub(last).Seconds())
			}
			last = now
		}
	}
	return nil
}

// reported returns when all nodes say that Redis answers, or that it doesn't.
func reported(ctx context.Context, c *cluster.Cluster, up bool) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		all, err := c.Status(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all, func(s cluster.Status) bool { return s.Redis == nil || s.Redis.Up != up }) {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// outagePlot draws the seconds of each zone.
func outagePlot(zones []seconds, p phases) plot.Plot {
	gone := p.before.Seconds()
	drawn := plot.Plot{
		Title: "Redis killed, back empty after 20 s: requests answered 100 %",
		Description: fmt.Sprintf("Three nodes share a limit of %d requests a second and are asked for %d. With Redis they admit the limit. Without it, with on_redis_loss local they come to admit the limit each, three times as much in all, and with divide a third each. "+
			"When Redis is back they admit the limit again. No request fails.", outageLimit/5, outageDemand),
		X: "seconds", Spans: []plot.Span{{Low: gone, High: gone + p.away.Seconds(), Name: "Redis killed"}},
	}
	for i, z := range zones {
		panel := plot.Panel{Y: "on_redis_loss " + outageZones[i], High: outageDemand * 1.1, Reference: outageLimit / outageWindow.Seconds(), Name: "the limit"}
		x := make([]float64, len(z.admitted))
		for second := range x {
			x[second] = float64(second) + .5
		}
		panel.Lines = []plot.Line{{Name: "denied", X: x, Y: z.denied, Style: 1}, {Name: "admitted", X: x, Y: z.admitted, Style: 2}}
		drawn.Panels = append(drawn.Panels, panel)
	}
	return drawn
}
