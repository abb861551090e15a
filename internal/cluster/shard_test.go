//go:build chaos

package cluster_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A part of a Cluster that is gone denies the keys that it holds, in a zone with on_redis_loss
// deny, and no others; whether the heartheartbeats are there or not.
func TestDenyHoldsForTheShardsThatAreGone(t *testing.T) {
	t.Parallel()
	r := redistest.StartCluster(t, 3)
	heartbeats := r.Owner(r.Slot("{0}"))
	c := start(t, 1, config("redis "+r.URL+"\nsync_rate 200ms",
		zones(zone("deny", wide, "algorithm fixed_window", "key {http.request.uri.query.k}", "on_redis_loss deny"))))
	requests := client(t, 4)
	ask := func(k int) int {
		return requests.Get(t.Context(), c.Nodes[0].Addr, fmt.Sprintf("/deny?k=%d", k), nil, new(cluster.Tally))
	}
	home := make([]int, 24) // of each key
	hashes := make([]int, len(r.Nodes))
	for k := range home {
		if got := ask(k); got != http.StatusOK {
			t.Fatalf("a request while all is well got %d", got)
		}
		eventually(t, "redis counts the key", func() error {
			for i, s := range r.Nodes {
				if n := len(sums(t, s, "deny")); n > hashes[i] {
					home[k], hashes[i] = i, n
					return nil
				}
			}
			return fmt.Errorf("%v", hashes)
		})
	}
	for _, gone := range []int{heartbeats, (heartbeats + 1) % 3} {
		r.Nodes[gone].Kill()
		for k, at := range home {
			if at != gone {
				continue
			}
			eventually(t, "a key whose master is gone is denied", func() error {
				if got := ask(k); got != http.StatusServiceUnavailable {
					return fmt.Errorf("%d", got)
				}
				return nil
			})
		}
		for range 5 {
			for k, at := range home {
				if got := ask(k); at != gone && got != http.StatusOK {
					t.Errorf("key %d, whose master is there, got %d while another one is gone", k, got)
				}
			}
		}
		r.Nodes[gone].Restart()
		r.Wait()
		for k := range home {
			eventually(t, "all keys are admitted again", func() error {
				if got := ask(k); got != http.StatusOK {
					return fmt.Errorf("key %d got %d", k, got)
				}
				return nil
			})
		}
	}
}
