//go:build chaos

package cluster_test

import (
	"fmt"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
)

// Redis answers and is silent in turns. Until a node has noticed either, it counts apart.
func TestFaultFlapping(t *testing.T) {
	s := simple(t)
	const flaps = 3
	s.inject(fault{
		name: "silent and answering in turns", reason: "timeout", extraLimits: 2 * flaps,
		begin: func() {
			for range flaps {
				s.set(faultproxy.Blackhole)
				for i := range s.Nodes {
					eventually(t, "a node notices", func() error {
						if s.status(i).Redis.Up {
							return fmt.Errorf("node %d does not", i+1)
						}
						return nil
					})
				}
				s.set(faultproxy.None)
				eventually(t, "the nodes sync again", s.allSynced)
			}
		},
		end: nothing,
	})
}
