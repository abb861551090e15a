package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/plot/picture"
)

// What is shown: the client asks for twice the limit, so every window begins with room and ends
// without. A window is ten lines of the table.
const (
	limit    = 300
	window   = 10 * time.Second
	syncRate = 2 * time.Second
	demand   = 60 // requests a second
)

// shares is how the client spreads its requests, as a load balancer does that is not quite even.
var shares = []int{0, 0, 0, 1, 1, 2}

const siteTemplate = `{
	admin {{.Admin}}
	default_bind 127.0.0.1
	grace_period 2s
	rate_limit {
		redis %s
		sync_rate %s
	}
}
http://:{{.Port}} {
	rate_limit {
		zone demo {
			match {
				path /
			}
			limit %d/%s
			algorithm fixed_window
		}
` + operated + `	}
	respond "node {{.Node}}
"
}
`

// show runs the demonstration.
func show(ctx context.Context, o options, program string, store store, out io.Writer) error {
	c, err := cluster.Start(ctx, cluster.Options{
		Program: program, Nodes: 3, Port: o.port, Caddyfile: fmt.Sprintf(siteTemplate, store.url, syncRate, limit, window),
	})
	if err != nil {
		return err
	}
	defer c.Close()
	introduce(out, c, store)

	shown, cancel := context.WithTimeout(ctx, o.length)
	defer cancel()
	client := cluster.NewClient(100)
	defer client.Close()
	tally := new(cluster.Tally)
	done := make(chan struct{})
	go func() {
		defer close(done)
		client.Steady(shown, c.Nodes, "/", demand, 0, func(int) int { return shares[rand.IntN(len(shares))] }, tally)
	}()
	recording := &picture.Recording{Title: fmt.Sprintf("Three nodes share %d requests in %s: what each counts, second by second", limit, window)}
	screens := []*screen{newScreen(out, o.color)}
	if o.record != "" {
		screens = append(screens, newScreen(recording, true))
	}
	best := watch(shown, c, tally, screens)
	cancel()
	<-done
	if o.record != "" {
		if err := os.WriteFile(o.record, recording.SVG(), 0o644); err != nil {
			return err
		}
	}
	if err := operate(ctx, program, c, out); err != nil {
		return err
	}
	if err := c.Stop(); err != nil {
		return err
	}
	conclude(out, tally, best)
	if failed, first := tally.Errors(); failed > 0 {
		return fmt.Errorf("%d requests had no answer, the first: %w; the servers wrote:\n%s", failed, first, c.Nodes[0].Log.Tail(5))
	}
	return nil
}

// introduce says what is going to be seen.
func introduce(out io.Writer, c *cluster.Cluster, store store) {
	fmt.Fprintf(out, `
Three Caddy servers share a limit of %d requests in %s; a client sends twice as many.
Each counts by itself and syncs every %s, sooner near the limit, through
%s: so what they know drifts apart, and converges again.

`, limit, window, syncRate, store.name)
	for _, n := range c.Nodes {
		fmt.Fprintf(out, "  node %d  http://%s  (what it knows: curl http://%s/rate_limit/)\n", n.Number, n.Addr, n.Admin)
	}
	fmt.Fprint(out, `
own      admitted by that server in this window
others   what it knows the others admitted; it decides by the sum of both
unseen   of what all three admitted, what the least informed server doesn't know yet
denied   since the start

`)
}

// watch prints a line each second on all screens until ctx ends, and returns the most that was
// admitted in one window.
func watch(ctx context.Context, c *cluster.Cluster, tally *cluster.Tally, screens []*screen) (most int64) {
	start := time.Now()
	for {
		// Just before the second is full, so that the last line of a window shows all of it.
		at := time.Now().Truncate(time.Second).Add(950 * time.Millisecond)
		if time.Until(at) <= 0 {
			at = at.Add(time.Second)
		}
		timer := time.NewTimer(time.Until(at))
		select {
		case <-ctx.Done():
			timer.Stop()
			return most
		case <-timer.C:
		}
		all, err := c.Status(ctx)
		if err != nil {
			if ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, "demo:", err)
			}
			return most
		}
		l := line{elapsed: time.Since(start), window: at.UnixNano() / int64(window), denied: tally.Denied()}
		for _, status := range all {
			l.zones = append(l.zones, status.Zone("demo"))
		}
		most = max(most, l.admitted())
		for _, s := range screens {
			s.print(l)
		}
	}
}

// conclude is the last line.
func conclude(out io.Writer, tally *cluster.Tally, most int64) {
	fmt.Fprintf(out, "\n%d requests sent, %d admitted, %d denied; at most %d admitted in a window, where the limit is %d. All is cleaned up.\n",
		tally.Sent(), tally.Admitted(), tally.Denied(), most, limit)
}
