package strict

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A client that spends its limits, comes once too early, and then waits as long as it is told, is
// admitted each time: whatever it costs, with one limit and with two.
func TestAClientThatWaitsAsToldIsAdmitted(t *testing.T) {
	for name, rule := range cellsOf(20, 70*time.Second) {
		longer := rule
		longer.Window, longer.Limit, longer.Burst, longer.Queue = 7*rule.Window, 25, 25, 24
		for _, rules := range [][]algorithms.Params{{rule}, {rule, longer}} {
			for _, cost := range []int64{1, 7} {
				onALine(t, time.Second, func(t *testing.T, l *line, s *Limiter) {
					livesByRetry(t, s, fmt.Sprint(name, len(rules), cost), rules, cost)
				})
			}
		}
	}
}

func livesByRetry(t *testing.T, s *Limiter, zone string, rules []algorithms.Params, cost int64) {
	for round := range redistest.Times(5, 50) {
		var g Grant
		var wait time.Duration
		for wait == 0 { // spends what there is
			time.Sleep(time.Duration(round) * 7 * time.Millisecond)
			g, wait = tellsWait(t, s, zone, rules, cost)
		}
		if again, _ := tellsWait(t, s, zone, rules, cost); g.Admitted() || again.Admitted() {
			t.Fatalf("%s: admitted at the instant of a denial", zone)
		}
		time.Sleep(wait + time.Microsecond) // which Redis' clock counts
		if g, more := tellsWait(t, s, zone, rules, cost); !g.Admitted() {
			t.Fatalf("%s: denied after the %s that it was told to wait, and told %s more", zone, wait, more)
		}
	}
}

// tellsWait takes, and returns what a denied client is told to wait.
func tellsWait(t *testing.T, s *Limiter, zone string, rules []algorithms.Params, cost int64) (g Grant, wait time.Duration) {
	t.Helper()
	all, g, err := s.Take(t.Context(), zone, rules, id(1), cost, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, updates := range all {
		if !updates.Allowed {
			wait = max(wait, updates.Retry)
		}
	}
	return g, wait
}
