package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
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

// phases are how many seconds the nodes serve before anything is drawn, and then with Redis,
// without it, and with it again.
type phases struct{ warm, before, away, after int }

var drawnPhases = phases{15, 10, 20, 20}

// outage draws what nodes admit and deny while Redis is killed and comes back empty.
func outage(ctx context.Context, o options, program, dir string, redis store, out io.Writer) error {
	if redis.embedded {
		return errors.New("an outage needs a redis-server, as an embedded Redis can't be killed")
	}
	zones := ""
	for _, name := range outageZones {
		zones += fmt.Sprintf("\t\tzone %s {\n\t\t\tmatch path /%s\n\t\t\tlimit %d/%s\n\t\t\ton_redis_loss %s\n\t\t}\n", name, name, outageLimit, outageWindow, name)
	}
	c, err := cluster.Start(ctx, cluster.Options{Program: program, Nodes: 3, Port: o.port, Caddyfile: caddyfile("\t\tredis "+redis.url+"\n", zones)})
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Fprintf(out, "Redis is killed after %d s and back after %d s more.\n", o.phases.before, o.phases.away)
	sending, stop := context.WithCancel(ctx)
	var clients sync.WaitGroup
	tallies := make([]*cluster.Tally, len(outageZones))
	for i, name := range outageZones {
		tallies[i] = new(cluster.Tally)
		clients.Go(func() {
			client := cluster.NewClient(100)
			defer client.Close()
			client.Steady(sending, c.Nodes, "/"+name, outageDemand, 0, func(i int) int { return i % len(c.Nodes) }, tallies[i])
		})
	}
	lines, err := record(ctx, c, o.phases, dir, redis, tallies)
	stop()
	clients.Wait()
	if err != nil {
		return err
	}
	for i, t := range tallies {
		if failed, first := t.Errors(); failed > 0 || t.Sent() != t.Admitted()+t.Denied() {
			return fmt.Errorf("%s: %d of %d requests had another answer than 200 and 429, or none: %w", outageZones[i], failed, t.Sent(), first)
		}
		fmt.Fprintf(out, "on_redis_loss %s: %d requests, %d admitted, %d denied, no other answer\n", outageZones[i], t.Sent(), t.Admitted(), t.Denied())
	}
	if err := os.WriteFile(o.outage, outagePlot(lines, o.phases).SVG(), 0o644); err != nil {
		return err
	}
	return c.Stop()
}

// record kills Redis and starts it again, and returns two lines for each zone: what was denied and
// admitted, second by second.
func record(ctx context.Context, c *cluster.Cluster, p phases, dir string, redis store, tallies []*cluster.Tally) ([][]plot.Line, error) {
	lines := make([][]plot.Line, len(tallies))
	for i := range lines {
		lines[i] = []plot.Line{{Name: "denied", Style: 1}, {Name: "admitted", Style: 2}}
	}
	was, last := make([][2]int, len(tallies)), time.Now()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for second := -p.warm; second < p.before+p.away+p.after; second++ {
		switch second {
		case p.before:
			redis.stop()
		case p.before + p.away:
			again, err := startRedis(ctx, dir, false)
			if err != nil {
				return nil, err
			}
			defer again.stop()
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case now := <-tick.C:
			for i, t := range tallies {
				is := [2]int{t.Denied(), t.Admitted()}
				for j := range is {
					if l := &lines[i][j]; second >= 0 {
						l.X = append(l.X, float64(second)+.5)
						l.Y = append(l.Y, float64(is[j]-was[i][j])/now.Sub(last).Seconds())
					}
				}
				was[i] = is
			}
			last = now
		}
		if second == p.before+p.away-1 {
			if err := reported(ctx, c, false); err != nil {
				return nil, err
			}
		}
	}
	return lines, reported(ctx, c, true)
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

func outagePlot(lines [][]plot.Line, p phases) plot.Plot {
	gone := float64(p.before)
	drawn := plot.Plot{
		Title: "Redis killed, back empty after 20 s: requests answered 100 %",
		Description: fmt.Sprintf("Three nodes share a limit of %d requests a second and are asked for %d. With Redis they admit the limit. Without it, with on_redis_loss local they come to admit the limit each, three times as much in all, and with divide a third each. "+
			"When Redis is back they admit the limit again. No request fails.", outageLimit/5, outageDemand),
		X: "seconds", Spans: []plot.Span{{Low: gone, High: gone + float64(p.away), Name: "Redis killed"}},
	}
	for i, zone := range outageZones {
		drawn.Panels = append(drawn.Panels, plot.Panel{
			Y: "on_redis_loss " + zone, High: outageDemand * 1.1, Reference: outageLimit / outageWindow.Seconds(), Name: "the limit", Lines: lines[i],
		})
	}
	return drawn
}
