// Command demo shows a cluster at work: three Caddy servers that share one limit through Redis, a
// client that asks for twice as much, and a table each second of what each server counted, what it
// knows of the others, and what was admitted in all. Then a client is unblocked, and a limit that
// was tried in shadow mode is enforced.
//
//	go run ./cmd/demo            for half a minute
//	go run ./cmd/demo -regions   the same with three regions, one of which is cut off
//	go run ./cmd/demo -figures   what three servers admit, as tables
//	go run ./cmd/demo -regions -figures
//	                             floods of two and six regions
//	go run ./cmd/demo -outage docs/reliability/outage.svg
//	                             the picture of docs/outages.md
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
	length   time.Duration
	port     int
	embedded bool
	figures  bool
	runs     int
	regions  bool
	color    bool
	outage   string
	record   string
	phases   phases
}

func main() {
	var o options
	flag.DurationVar(&o.length, "for", 30*time.Second, "how long to run")
	flag.IntVar(&o.port, "port", 0, "port of the first server, the others get the next two (default: any free ones)")
	flag.BoolVar(&o.embedded, "embedded", false, "use the embedded Redis even where a redis-server is installed")
	flag.BoolVar(&o.figures, "figures", false, "measure what three servers admit and print tables instead, which takes about seven minutes")
	flag.StringVar(&o.outage, "outage", "", "draw what nodes admit while Redis is away into this file instead, which takes about a minute")
	flag.StringVar(&o.record, "record", "", "draw the table into this file as well, line by line")
	flag.BoolVar(&o.regions, "regions", false, "show three regions instead, one of which is cut off for a while")
	flag.IntVar(&o.runs, "runs", 3, "how often each figure is measured")
	flag.Parse()
	o.phases = drawnPhases
	o.color = term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == ""

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run builds Caddy, starts Redis, and shows or measures. All that it started has ended and is
// removed when it returns.
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
	if o.regions && o.figures {
		return regionFigures(ctx, o, program, dir, out)
	}
	if o.regions {
		return showRegions(ctx, o, program, dir, out)
	}
	store, err := startStore(ctx, dir, o.embedded)
	if err != nil {
		return err
	}
	defer store.stop()
	switch {
	case o.figures:
		return figures(ctx, o, program, store, out)
	case o.outage != "":
		return outage(ctx, o, program, dir, store, out)
	}
	return show(ctx, o, program, store, out)
}
