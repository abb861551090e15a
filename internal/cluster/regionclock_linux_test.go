//go:build chaos

package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A region whose Redis has a clock that is 31 s ahead, three windows of the limit, tells the other
// one and is told. Nobody below the limit is denied, nothing is lost, and each region logs once
// that the clocks differ.
func TestClockOfARegionIsAhead(t *testing.T) {
	t.Parallel()
	eu, us, c := redistest.Start(t), redistest.Start(t, redistest.Ahead(31*time.Second)), client(t, 8)
	site := zones(zone("short", "key all", "limit 2000/10s"), zone("all", "key all", "limit 5000/"+far), zone("bucket", "key all", "limit 5000/"+far, "algorithm token_bucket"))
	nodes := make(map[string][]*cluster.Node)
	for _, here := range []string{"eu", "us"} {
		text := config("regions {\n\there "+here+"\n\tregion eu "+eu.URL+"\n\tregion us "+us.URL+"\n}", site)
		nodes[here] = start(t, 1, text).Nodes
	}
	tallies := make(map[string][]*cluster.Tally)
	var stops []func()
	for _, name := range []string{"short", "all", "bucket"} {
		for _, of := range nodes {
			tally, stop := load(t, c, of, name, 20)
			tallies[name], stops = append(tallies[name], tally), append(stops, stop)
		}
	}
	const apart = "the clocks of the redis of two regions differ"
	for here, of := range nodes {
		eventually(t, here+" logs that the clocks differ", func() error {
			if len(of[0].Log.With(apart)) == 0 {
				return fmt.Errorf("%s", of[0].Log.Tail(2))
			}
			return nil
		})
	}
	awaitAnswers(t, tallies["short"][0], 20*25) // two windows and a half
	for _, stop := range stops {
		stop()
	}
	for name, of := range tallies {
		if of[0].Denied()+of[1].Denied() > 0 {
			t.Errorf("%s: %d and %d requests were denied, want none", name, of[0].Denied(), of[1].Denied())
		}
		if name == "short" {
			continue // its first windows are gone
		}
		for _, r := range []*redistest.Server{eu, us} {
			awaitTotal(t, r, name, of[0].Admitted()+of[1].Admitted())
		}
	}
	for here, of := range nodes {
		if lines := of[0].Log.With(apart); len(lines) != 1 {
			t.Errorf("%s has logged %d times that the clocks differ: %q", here, len(lines), lines)
		}
	}
}
