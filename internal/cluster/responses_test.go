package cluster_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

const (
	countWrong = "count_responses 401 403"
	fiveAnHour = "limit 5/1h"
)

// 120 parallel guesses over three nodes: strict lets exactly the limit through to the handler, an
// interval at most the limit on each node that has never seen the key. Where the guesses are
// spread over two seconds, each node knows of the others as of its own last request.
func TestWrongGuessesOverThreeNodes(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	var parts, answers []string
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"} {
		for _, rate := range []string{"strict", "1s"} {
			for _, how := range []string{"", "-spread"} {
				name := algorithm + "-" + rate + how
				parts = append(parts, zone(name, fiveAnHour, "algorithm "+algorithm, "sync_rate "+rate, countWrong))
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
		tally := new(cluster.Tally)
		requests.Steady(t.Context(), c.Nodes, path+"-1s-spread", 60, 120, func(i int) int { return i % len(c.Nodes) }, tally)
		if got := reached(tally); got < 5 || got > 9 {
			t.Errorf("%s, 1s, spread over two seconds: %d guesses reached the handler, want 5 to 9", algorithm, got)
		}
	}
}
