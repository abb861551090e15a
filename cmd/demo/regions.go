package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// regionZones are the limit that is shown, and one that counts the whole.
var regionZones = fmt.Sprintf(`		zone demo {
			limit %d/%s
			algorithm fixed_window
		}
		zone whole {
			limit 6000/30d
			algorithm fixed_window
		}
`, limit, window)

// A world is the regions, and the ways to and from the one that is cut off.
type world struct {
	nodes []*cluster.Node
	redis []*redis.Client // of each region
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

// start starts a Redis and a server in each region.
func (w *world) start(ctx context.Context, program, dir string) error {
	urls := make([]string, len(regionNames))
	for i, name := range regionNames {
		of := filepath.Join(dir, name)
		if err := os.Mkdir(of, 0o700); err != nil {
			return err
		}
		url, stop, err := cluster.StartRedis(ctx, "redis-server", of)
		if err != nil {
			return err
		}
		w.close = append(w.close, stop)
		urls[i] = url
		to, err := redis.ParseURL(url)
		if err != nil {
			return err
		}
		client := redis.NewClient(to)
		w.close = append(w.close, func() { _ = client.Close() })
		w.redis = append(w.redis, client)
	}
	last := len(regionNames) - 1
	for i, here := range regionNames {
		global := fmt.Sprintf("\t\tregions {\n\t\t\there %s\n", here)
		for j, there := range regionNames {
			url := urls[j]
			if i != j {
				p, err := faultproxy.Open(url[strings.Index(url, "://")+3:])
				if err != nil {
					return err
				}
				w.close = append(w.close, p.Close)
				p.SetDistance(apart)
				if url = "redis://" + p.Addr; i == last || j == last {
					w.links = append(w.links, p)
				}
			}
			global += fmt.Sprintf("\t\t\tregion %s %s\n", there, url)
		}
		c, err := cluster.Start(ctx, cluster.Options{Program: program, Nodes: 1, Caddyfile: caddyfile(global+"\t\t}\n", regionZones)})
		if err != nil {
			return err
		}
		w.close = append(w.close, c.Close)
		w.nodes = append(w.nodes, c.Nodes...)
	}
	return nil
}

// showRegions runs the second act.
func showRegions(ctx context.Context, o options, program, dir string, out io.Writer) error {
	w, last := new(world), regionNames[len(regionNames)-1]
	defer w.end()
	if err := w.start(ctx, program, dir); err != nil {
		return err
	}
	fmt.Fprintf(out, `
Three regions share a limit of %d requests in %s. Each has a server and a Redis of its own, %s
from the others. A client sends twice as many; every %s it goes on to the next region. After %s
%s is cut off from the others, for %s.

own      admitted in that region in this window
others   what its server knows that the others have admitted

`, limit, window, apart, stay, cutAfter, last, cutFor)
	t := &table{out: out, color: o.color, recording: picture.Recording{
		Title: fmt.Sprintf("Three regions share %d requests in %s, and one is cut off for a while: what each counts, second by second", limit, window),
	}}
	head := " time  client in "
	for _, name := range regionNames {
		head += fmt.Sprintf("  %-12s", name)
	}
	t.print(paint(bold, head+" all regions   denied"))
	t.print(paint(bold, strings.Repeat(" ", 17)+strings.Repeat("   own others ", len(regionNames))))
	at, isCut := new(atomic.Int64), false
	pick := func(i int) int {
		in := i / int(demand*stay/time.Second) % len(w.nodes)
		at.Store(int64(in))
		return in
	}
	tally, err := o.load(ctx, w.nodes, pick, func(since time.Duration, sent *cluster.Tally) error {
		if cut := since >= cutAfter && since < cutAfter+cutFor; cut != isCut {
			isCut = cut
			if cut {
				w.cut(faultproxy.Blackhole)
				t.print(paint(yellow, "---- "+last+" is cut off: each side admits by what it knows"))
			} else {
				w.cut(faultproxy.Reset)
				w.cut(faultproxy.None)
				t.print(paint(yellow, "---- "+last+" is reached again: all is read that was missed"))
			}
		}
		counted, sum := fmt.Sprintf(" %-9s ", regionNames[at.Load()]), int64(0)
		for _, n := range w.nodes {
			status, err := n.Status(ctx)
			if err != nil {
				return err
			}
			z := status.Zone("demo")
			sum += z.Own
			counted += fmt.Sprintf(" %5d %s ", z.Own, paint(dim, fmt.Sprintf("%+6d", z.Remote)))
		}
		t.row(since, counted+"  ", sum, fmt.Sprintf("%9d", sent.Denied()))
		return nil
	})
	w.cut(faultproxy.None)
	if err == nil {
		err = errors.Join(t.draw(o.record), answered(tally, w.nodes))
	}
	if err != nil {
		return err
	}
	return w.conclude(ctx, tally, out)
}

// counted is what a Redis counts in the zone whole.
func counted(ctx context.Context, client *redis.Client) (sum int, err error) {
	keys, err := client.Keys(ctx, "*:whole:*").Result()
	for _, key := range keys {
		text, err := client.HGet(ctx, key, "sum").Result()
		if err != nil {
			return sum, err
		}
		n := 0
		if _, err := fmt.Sscan(text, &n); err != nil {
			return sum, err
		}
		sum += n
	}
	return sum, err
}

// conclude waits until all regions count what was admitted in all of them.
func (w *world) conclude(ctx context.Context, tally *cluster.Tally, out io.Writer) error {
	fmt.Fprintf(out, "\n%d requests sent, %d admitted, %d denied.\n", tally.Sent(), tally.Admitted(), tally.Denied())
	for began := time.Now(); ; {
		equal, text := true, ""
		for i, client := range w.redis {
			n, err := counted(ctx, client)
			if err != nil {
				return err
			}
			equal = equal && n == tally.Admitted()
			text += fmt.Sprintf(", %s %d", regionNames[i], n)
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
