// Command demo shows a cluster at work: three Caddy servers that share one limit through Redis, a
// client that asks for twice as much, and a table each second of what each server counted, what it
// knows of the others, and what was admitted in all.
//
//	go run ./cmd/demo            for half a minute
//	go run ./cmd/demo -regions   the same with three regions, one of which is cut off
//	go run ./cmd/demo -for 20s -record docs/pictures/demo.svg
//	                             the table of a run, as it comes, in a picture; with -regions and
//	                             regions.svg that of three regions
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/caddy-tide/ratelimit/internal/cluster"
)

// options are the command's flags.
type options struct {
	length  time.Duration
	regions bool
	color   bool
	record  string
}

func main() {
	var o options
	flag.DurationVar(&o.length, "for", 30*time.Second, "how long to run")
	flag.StringVar(&o.record, "record", "", "draw the table into this file as well, line by line")
	flag.BoolVar(&o.regions, "regions", false, "show three regions instead, one of which is cut off for a while")
	flag.Parse()
	o.color = term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == ""

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run builds Caddy, starts Redis, and shows or draws. All that it started has ended and is removed
// when it returns.
func run(ctx context.Context, o options, out io.Writer) error {
	dir, err := os.MkdirTemp("", "tide")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Fprintln(out, "Building Caddy; the first time that takes some minutes.")
	program, err := cluster.Build(ctx, dir, cluster.Caddy)
	if err != nil {
		return err
	}
	if o.regions {
		return showRegions(ctx, o, program, dir, out)
	}
	redis, stop, err := cluster.StartRedis(ctx, "redis-server", dir)
	if err != nil {
		return err
	}
	defer stop()
	return show(ctx, o, program, redis, out)
}

// caddyfile is a site with these global options and zones.
func caddyfile(global, zones string) string {
	return fmt.Sprintf(`{
	admin {{.Admin}}
	default_bind 127.0.0.1
	grace_period 2s
	rate_limit {
%s	}
}
http://:{{.Port}} {
	rate_limit {
%s	}
	respond "node {{.Node}}"
}
`, global, zones)
}

// answered returns an error where a request had no answer.
func answered(tally *cluster.Tally, nodes []*cluster.Node) error {
	if failed, first := tally.Errors(); failed > 0 {
		return fmt.Errorf("%d requests had no answer, the first: %w; the servers wrote:\n%s", failed, first, nodes[0].Log.Tail(5))
	}
	return nil
}
