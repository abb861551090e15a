package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
)

// A flood of regions: a new client that asks all servers alike for three times the limit.
const (
	floodLimit = 2000
	floodRate  = 2000 // requests a second
	floodSize  = 3 * floodLimit
	settles    = time.Minute // in which all regions have to count the same
)

// regionFigures measures floods of two and of six regions, all as far apart, with two servers each.
func regionFigures(ctx context.Context, o options, program, dir string, out io.Writer) error {
	fmt.Fprintf(out, "Limit %d/30d, %d requests, %d a second, two servers and a Redis in each region, %s between them.\n\n", floodLimit, floodSize, floodRate, apart)
	fmt.Fprint(out, "| regions | sent a second | admitted | admitted / limit | counted by each Redis | all equal after |\n|---|---|---|---|---|---|\n")
	for _, n := range []int{2, 6} {
		if err := floods(ctx, o, program, filepath.Join(dir, fmt.Sprint(n)), n, out); err != nil {
			return err
		}
	}
	return nil
}

// floods starts so many regions, and floods a zone of its own in each run.
func floods(ctx context.Context, o options, program, dir string, regions int, out io.Writer) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	var names []string
	for i := range regions {
		names = append(names, fmt.Sprintf("r%d", i))
	}
	var zones strings.Builder
	for run := range o.runs {
		fmt.Fprintf(&zones, "\t\tzone flood%d {\n\t\t\tmatch path /%d\n\t\t\tkey all\n\t\t\tlimit %d/30d\n\t\t\talgorithm fixed_window\n\t\t}\n", run, run, floodLimit)
	}
	w, err := startRegions(ctx, o, program, dir, names, 2, zones.String())
	if err != nil {
		return err
	}
	defer w.end()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(15 * time.Second): // the regions have heard of each other
	}
	for run := range o.runs {
		if err := w.flood(ctx, regions, run, out); err != nil {
			return err
		}
	}
	return nil
}

// flood is one run, and a row of the table.
func (w *world) flood(ctx context.Context, regions, run int, out io.Writer) error {
	client, tally, began := cluster.NewClient(100), new(cluster.Tally), time.Now()
	defer client.Close()
	client.Steady(ctx, w.nodes, fmt.Sprintf("/%d", run), floodRate, floodSize, func(int) int { return rand.IntN(len(w.nodes)) }, tally)
	took := time.Since(began)
	if n, first := tally.Errors(); n > 0 {
		return fmt.Errorf("%d requests had no answer, the first: %w", n, first)
	}
	ended := time.Now()
	for {
		equal, counted := true, 0
		for i := range w.redis {
			n, err := w.counted(ctx, i, fmt.Sprintf("flood%d", run))
			if err != nil {
				return err
			}
			equal, counted = equal && n == tally.Admitted(), n
		}
		if equal {
			fmt.Fprintf(out, "| %d | %.0f | %d | %.3f | %d | %.1f s |\n", regions, floodSize/took.Seconds(), tally.Admitted(), share(tally.Admitted(), floodLimit), counted, time.Since(ended).Seconds())
			return nil
		}
		if time.Since(ended) > settles {
			return fmt.Errorf("a Redis counts %d, where %d were admitted", counted, tally.Admitted())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
