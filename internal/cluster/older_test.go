//go:build chaos

package cluster_test

import (
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A configuration of the older plugin, with the one line that it needs here, shares its counts
// between nodes. Its key was meant for the client's address; there, it was the same for all
// clients.
func TestOlderDistributedConfigurationSharesItsCounts(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	c := start(t, 2, config("redis "+r.URL, `rate_limit {
		distributed {
			read_interval 50ms
			write_interval 100ms
			purge_age 1m
		}
		zone per_client {
			match {
				path /per_client
			}
			key {http.request.remote_ip}
			window 30d
			events 8
		}
		zone everybody {
			match {
				path /everybody
			}
			key static
			window 30d
			events 100
		}
		jitter 0.2
		sweep_interval 1m
	}`))
	requests := client(t, 4)
	for zone, events := range map[string]int{"per_client": 8, "everybody": 100} {
		admit(t, requests, c.Nodes[:1], zone, events-3)
		awaitSent(t, c.Nodes[:1], zone)
		admit(t, requests, c.Nodes[1:], zone, 1)
		awaitKnown(t, c.Nodes[1:], zone, events-2)
		tally := requests.Burst(t.Context(), c.Nodes[1:], "/"+zone, 20, nil)
		if tally.Admitted() > 2 || tally.Admitted()+tally.Denied() != 20 {
			_, err := tally.Errors()
			t.Errorf("%s: with 2 of %d left, %d of 20 requests were admitted and %d denied (first error: %v)", zone, events, tally.Admitted(), tally.Denied(), err)
		}
		awaitTotal(t, r, zone, events-2+tally.Admitted())
		if z := status(t, c.Nodes[1], zone); z.Algorithm != "sliding_log" || z.SyncRate != "50ms" || z.Keys != 1 {
			t.Errorf("%s is %+v, want a sliding_log synced every 50ms with one key", zone, z)
		}
	}
}
