package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/plot/picture"
)

const syncRate = 2 * time.Second

// shares is how the client spreads its requests, as a load balancer does that is not quite even.
var shares = []int{0, 0, 0, 1, 1, 2}

// shownZone is the limit of the table.
var shownZone = fmt.Sprintf(`		zone demo {
			limit %d/%s
			algorithm fixed_window
		}
`, limit, window)

const headings = "" +
	"        node 1      node 2      node 3      all three\n" +
	" time   own others  own others  own others  admitted unseen  denied\n"

// show runs the demonstration.
func show(ctx context.Context, o options, program, redis string, out io.Writer) error {
	global := fmt.Sprintf("\t\tredis %s\n\t\tsync_rate %s\n", redis, syncRate)
	c, err := cluster.Start(ctx, cluster.Options{Program: program, Nodes: 3, Caddyfile: caddyfile(global, shownZone)})
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Fprintf(out, `
Three Caddy servers share a limit of %d requests in %s; a client sends twice as many.
Each counts by itself and syncs every %s, sooner near the limit, through
one Redis: so what they know drifts apart, and converges again.

`, limit, window, syncRate)
	for _, n := range c.Nodes {
		fmt.Fprintf(out, "  node %d  http://%s  (what it knows: curl http://%s/rate_limit/)\n", n.Number, n.Addr, n.Admin)
	}
	fmt.Fprint(out, `
own      admitted by that server in this window
others   what it knows the others admitted; it decides by the sum of both
unseen   of what all three admitted, what the least informed server doesn't know yet
denied   since the start

`)
	t := &table{out: out, color: o.color, recording: picture.Recording{
		Title: fmt.Sprintf("Three nodes share %d requests in %s: what each counts, second by second", limit, window),
	}}
	for heading := range strings.Lines(headings) {
		t.print(paint(bold, strings.TrimSuffix(heading, "\n")))
	}
	most := int64(0)
	pick := func(int) int { return shares[rand.IntN(len(shares))] }
	tally, err := o.load(ctx, c.Nodes, pick, func(since time.Duration, sent *cluster.Tally) error {
		all, err := c.Status(ctx)
		if err != nil {
			return err
		}
		counted, admitted, least := "", int64(0), int64(math.MaxInt64)
		for _, status := range all {
			z := status.Zone("demo")
			counted += fmt.Sprintf(" %5d %s", z.Own, paint(dim, fmt.Sprintf("%+5d", z.Remote)))
			admitted += z.Own
			least = min(least, z.Known())
		}
		unseen := ""
		if least < admitted {
			unseen = fmt.Sprint(admitted - least)
		}
		most = max(most, admitted)
		t.row(since, counted+"  ", admitted, fmt.Sprintf("%s %7d", paint(yellow, fmt.Sprintf("%6s", unseen)), sent.Denied()))
		return nil
	})
	if err == nil {
		err = t.draw(o.record)
	}
	if err == nil {
		err = c.Stop()
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d requests sent, %d admitted, %d denied; at most %d admitted in a window, where the limit is %d. All is cleaned up.\n",
		tally.Sent(), tally.Admitted(), tally.Denied(), most, limit)
	return answered(tally, c.Nodes)
}
