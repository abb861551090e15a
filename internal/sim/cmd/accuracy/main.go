// Command accuracy writes the tables of docs/internals/accuracy-figures.md, and their plots.
// It runs the simulations of internal/sim/scenario with fixed seeds, so that the same code writes
// the same figures.
//
//	accuracy         all that is simulated
//	accuracy -real   what is measured on real processes, see internal/sim/validate
//	accuracy -check  nothing: it says which tables and plots the page lacks
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// seeds is how many runs a figure is the median of.
const seeds = 10

func main() {
	real := flag.Bool("real", false, "measure real processes instead, which takes about three minutes and needs redis-server")
	checks := flag.Bool("check", false, "say which tables and plots the page lacks, and write none")
	only := flag.String("only", "", "write only the section or plot of this name")
	flag.Parse()
	if *checks {
		if err := check(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *real, *only); err != nil {
		fmt.Fprintln(os.Stderr, "accuracy:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, real bool, only string) error {
	if _, err := os.Stat(filepath.FromSlash(page)); err != nil {
		return fmt.Errorf("%w; run this in the root of the checkout", err)
	}
	wanted := func(name string) bool { return only == "" || only == name }
	if real {
		return writeSections(map[string]func() (string, error){"real": func() (string, error) { return measured(ctx) }}, wanted)
	}
	if err := writeSections(tables, wanted); err != nil {
		return err
	}
	for name, draw := range plots {
		if !wanted(name) || ctx.Err() != nil {
			continue
		}
		start := time.Now()
		if err := os.WriteFile(filepath.Join("docs", "accuracy", name+".svg"), draw().SVG(), 0o644); err != nil {
			return err
		}
		progress(name, start)
	}
	return ctx.Err()
}

func progress(name string, start time.Time) {
	fmt.Printf("%-12s %5.1f s\n", name, time.Since(start).Seconds())
}
