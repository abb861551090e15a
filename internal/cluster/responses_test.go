//go:build chaos

package cluster_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

const (
	countWrong = "count_responses 401 403"
	fiveAnHour = "limit 5/1h"
)

// 120 parallel guesses over three nodes: strict lets exactly the limit through to the handler, an
// interval at most the limit on each node that has never seen the key, and at most one more where
// the guesses are spread over two seconds.
func TestWrongGuessesOverThreeNodes(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	var parts, answers []string
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"} {
		for _, rate := range []string{"strict", "1s"} {
			for _, how := range []string{"", "-spread"} {
				name := algorithm + "-" + rate + how
				parts = append(parts, zone(name, fiveAnHour, "key {query}", "algorithm "+algorithm, "sync_rate "+rate, countWrong))
				answers = append(answers, "respond /"+name+" 401")
			}
		}
	}
	c := start(t, 3, config("redis "+r.URL+"\nstrict_timeout 20s", zones(parts...)+"\n"+strings.Join(answers, "\n")))
	requests := client(t, 120)
	reached := func(tally *cluster.Tally) int {
		if n, err := tally.Errors(); n > 0 {
			t.Errorf("%d requests had no answer: %v", n, err)
		}
		return tally.Status(http.StatusUnauthorized)
	}
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"} {
		path := "/" + algorithm
		if got := reached(requests.Burst(t.Context(), c.Nodes, path+"-strict", 120, nil)); got != 5 {
			t.Errorf("%s, strict: %d guesses reached the handler, want 5", algorithm, got)
		}
		if got := reached(requests.Burst(t.Context(), c.Nodes, path+"-1s", 120, nil)); got < 5 || got > 15 {
			t.Errorf("%s, 1s: %d guesses reached the handler, want 5 to 15", algorithm, got)
		}
		spread := func(over time.Duration) int {
			tally := new(cluster.Tally)
			to := func(i int) int { return i % len(c.Nodes) }
			requests.Steady(t.Context(), c.Nodes, fmt.Sprint(path, "-1s-spread?", over), 120/over.Seconds(), 120, to, tally)
			return reached(tally)
		}
		// How soon nodes learn of each other depends on what else the machine does. So guesses may
		// be further apart in a second try, and a third.
		got, over := spread(2*time.Second), 2*time.Second
		for ; got > 6 && over < 64*time.Second; got = spread(over) {
			t.Logf("%s, 1s, spread over %v: %d guesses reached the handler", algorithm, over, got)
			over *= 2
		}
		if got < 5 || got > 6 {
			t.Errorf("%s, 1s, spread over %v: %d guesses reached the handler, want 5 or 6", algorithm, over, got)
		}
	}
}
