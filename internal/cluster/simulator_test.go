//go:build chaos

package cluster_test

import (
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/sim/validate"
)

// What the simulator predicts, real processes around a real Redis do.
func TestProcessesAdmitWhatTheSimulatorPredicts(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	var parts []string
	for _, s := range validate.Scenarios() {
		parts = append(parts, s.Zone(s.Name, "sync_rate "+s.Rate.String()))
	}
	c := start(t, validate.Nodes, config("redis "+r.URL, zones(parts...)))
	requests := client(t, 50)
	for _, s := range validate.Scenarios() {
		tally, err := s.Measure(t.Context(), requests, c.Nodes, s.Name)
		if err != nil {
			t.Fatal(err)
		}
		allowed := s.Allowed()
		if got := tally.Admitted(); got < allowed.Least || got > allowed.Most {
			t.Errorf("%s: %d of %d requests were admitted; the simulator allows %v, and one exact counter admits %v", s.Says, got, tally.Sent(), allowed, s.Exact())
		} else {
			t.Logf("%s: %d of %d requests were admitted; the simulator allows %v, and one exact counter admits %v", s.Says, got, tally.Sent(), allowed, s.Exact())
		}
	}
}
