package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/plot/picture"
)

// The regions of the second act: a server and a Redis each, as far apart as continents, and a
// client that travels.
var regionNames = []string{"eu", "us", "asia"}

const (
	apart    = 100 * time.Millisecond // there and back
	stay     = 4 * time.Second        // of the client in one region
	lastly   = time.Minute            // in which all regions have to know of all
	cutAfter = 12 * time.Second
	cutFor   = 14 * time.Second
)

const regionsTemplate = `{
	admin {{.Admin}}
	default_bind 127.0.0.1
	grace_period 2s
	rate_limit {
		regions {
			here %s
%s		}
	}
}
http://:{{.Port}} {
	rate_limit {
%s	}
	respond "{{.Node}}"
}
`

// shownZones are the limit that is shown, and one that counts the whole.
var shownZones = fmt.Sprintf(`		zone demo {
			limit %d/%s
			algorithm fixed_window
		}
		zone whole {
			limit 6000/30d
			algorithm fixed_window
		}
`, limit, window)

// A world is the regions, and the links between them.
type world struct {
	nodes []*cluster.Node
	redis []redis.UniversalClient // of each region
	// links are the ways to and from the region that is cut off.
	links []*faultproxy.Proxy
	close []func()
}

func (w *world) end() {
	for i := len(w.close) - 1; i >= 0; i-- {
		w.close[i]()
	}
}

// cut sets a fault of the links of the last region.
func (w *world) cut(f faultproxy.Fault) {
	for _, l := range w.links {
		l.Set(f)
	}
}

// startRegions starts a Redis in each region, and so many servers with these zones.
func startRegions(ctx context.Context, o options, program, dir string, names []string, nodes int, zones string) (w *world, err error) {
	w = &world{}
	defer func() {
		if err != nil {
			w.end()
		}
	}()
	stores := make([]store, len(names))
	for i, name := range names {
		of := filepath.Join(dir, name)
		if err := os.Mkdir(of, 0o700); err != nil {
			return w, err
		}
		if stores[i], err = startStore(ctx, of, o.embedded); err != nil {
			return w, err
		}
		w.close = append(w.close, stores[i].stop)
		to, err := redis.ParseURL(stores[i].url)
		if err != nil {
			return w, err
		}
		client := redis.NewClient(to)
		w.close = append(w.close, func() { _ = client.Close() })
		w.redis = append(w.redis, client)
	}
	for i, name := range names {
		var list strings.Builder
		for j, other := range names {
			url := stores[j].url
			if i != j {
				if url, err = w.link(url, i == len(names)-1 || j == len(names)-1); err != nil {
					return w, err
				}
			}
			fmt.Fprintf(&list, "\t\t\tregion %s %s\n", other, url)
		}
		port := 0
		if o.port != 0 {
			port = o.port + i*nodes
		}
		c, err := cluster.Start(ctx, cluster.Options{
			Program: program, Nodes: nodes, Port: port, Caddyfile: fmt.Sprintf(regionsTemplate, name, &list, zones),
		})
		if err != nil {
			return w, err
		}
		w.close = append(w.close, c.Close)
		w.nodes = append(w.nodes, c.Nodes...)
	}
	return w, nil
}

// link puts a long way before a Redis, and returns the URL of its other end.
func (w *world) link(url string, isCut bool) (string, error) {
	_, address, _ := strings.Cut(url, "://")
	p, err := faultproxy.Open(address)
	if err != nil {
		return "", err
	}
	w.close = append(w.close, p.Close)
	p.SetDistance(apart)
	if isCut {
		w.links = append(w.links, p)
	}
	return "redis://" + p.Addr, nil
}

// showRegions runs the second act.
func showRegions(ctx context.Context, o options, program, dir string, out io.Writer) error {
	w, err := startRegions(ctx, o, program, dir, regionNames, 1, shownZones)
	if err != nil {
		return err
	}
	defer w.end()
	fmt.Fprintf(out, `
Three regions share a limit of %d requests in %s. Each has a server and a Redis of its own, %s
from the others. A client sends twice as many; every %s it goes on to the next region. After %s
%s is cut off from the others, for %s.

own      admitted in that region in this window
others   what its server knows that the others have admitted

`, limit, window, apart, stay, cutAfter, regionNames[len(regionNames)-1], cutFor)
	shown, cancel := context.WithTimeout(ctx, o.length)
	defer cancel()
	client, tally, at := cluster.NewClient(100), new(cluster.Tally), new(atomic.Int64)
	defer client.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		client.Steady(shown, w.nodes, "/", demand, 0, func(i int) int {
			in := i / int(demand*stay/time.Second) % len(w.nodes)
			at.Store(int64(in))
			return in
		}, tally)
	}()
	s, recording := newScreen(out, o.color), &picture.Recording{Title: fmt.Sprintf("Three regions share %d requests in %s, and one is cut off for a while: what each counts, second by second", limit, window)}
	if o.record != "" {
		s = newScreen(io.MultiWriter(out, recording), true)
	}
	w.watch(shown, tally, at, s)
	cancel()
	<-done
	w.cut(faultproxy.None)
	if o.record != "" {
		if err := os.WriteFile(o.record, recording.SVG(), 0o644); err != nil {
			return err
		}
	}
	return w.conclude(ctx, tally, out)
}

// watch prints a line each second until ctx ends, and cuts a region off and heals it meanwhile.
func (w *world) watch(ctx context.Context, tally *cluster.Tally, at *atomic.Int64, s *screen) {
	last := regionNames[len(regionNames)-1]
	head := " time  client in "
	for _, name := range regionNames {
		head += fmt.Sprintf("  %-12s", name)
	}
	fmt.Fprintln(s.out, s.paint(bold, head+" all regions   denied"))
	fmt.Fprintln(s.out, s.paint(bold, strings.Repeat(" ", 17)+strings.Repeat("   own others ", len(regionNames))))
	start, isCut := time.Now(), false
	for {
		next := time.Now().Truncate(time.Second).Add(1950 * time.Millisecond)
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(time.Second, time.Until(next))):
		}
		since := time.Since(start)
		if cut := since >= cutAfter && since < cutAfter+cutFor; cut != isCut {
			isCut = cut
			if cut {
				w.cut(faultproxy.Blackhole)
				fmt.Fprintln(s.out, s.paint(yellow, "---- "+last+" is cut off: each side admits by what it knows"))
			} else {
				w.cut(faultproxy.Reset)
				w.cut(faultproxy.None)
				fmt.Fprintln(s.out, s.paint(yellow, "---- "+last+" is reached again: all is read that was missed"))
			}
		}
		s.rule(time.Now().UnixNano() / int64(window))
		w.line(ctx, since, tally, regionNames[at.Load()], s)
	}
}

// line prints how all regions stand.
func (w *world) line(ctx context.Context, since time.Duration, tally *cluster.Tally, in string, s *screen) {
	text, sum := fmt.Sprintf("%4.0fs  %-9s ", since.Seconds(), in), int64(0)
	for _, n := range w.nodes {
		status, err := n.Status(ctx)
		if err != nil {
			return
		}
		z := status.Zone("demo")
		sum += z.Own
		text += fmt.Sprintf(" %5d %s ", z.Own, s.paint(dim, fmt.Sprintf("%+6d", z.Remote)))
	}
	style := plain
	if sum > limit {
		style = red
	}
	fmt.Fprintf(s.out, "%s   %s %9d  %s\n", text, s.paint(style, fmt.Sprintf("%4d/%d", sum, limit)), tally.Denied(), s.paint(blue, bar(sum)))
}

// counted is how much the Redis of a region counts in a zone.
func (w *world) counted(ctx context.Context, region int, zone string) (n int, err error) {
	keys, err := w.redis[region].Keys(ctx, "*:"+zone+":*").Result()
	for _, key := range keys {
		sum, why := w.redis[region].HGet(ctx, key, "sum").Result()
		if why != nil {
			return n, why
		}
		total, _, _ := strings.Cut(sum, " ")
		one, _ := strconv.Atoi(total)
		n += one
	}
	return n, err
}

// conclude waits until all regions count what was admitted in all of them.
func (w *world) conclude(ctx context.Context, tally *cluster.Tally, out io.Writer) error {
	if failed, first := tally.Errors(); failed > 0 {
		return fmt.Errorf("%d requests had no answer, the first: %w", failed, first)
	}
	fmt.Fprintf(out, "\n%d requests sent, %d admitted, %d denied.\n", tally.Sent(), tally.Admitted(), tally.Denied())
	began := time.Now()
	for {
		equal, text := true, ""
		for i, name := range regionNames {
			n, err := w.counted(ctx, i, "whole")
			if err != nil {
				return err
			}
			equal = equal && n == tally.Admitted()
			text += fmt.Sprintf(", %s %d", name, n)
		}
		if equal || time.Since(began) > lastly {
			fmt.Fprintf(out, "Admitted since the start, as the Redis of each region counts after %.0f s: %s. All is cleaned up.\n", time.Since(began).Seconds(), text[2:])
			if !equal {
				return fmt.Errorf("not all regions know of %d", tally.Admitted())
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}
