//go:build chaos

package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
)

// Redis is silent and answers in turns, and answers for twice as long: what waits in vain is held
// to what is sent meanwhile. Until a node has noticed either, it counts apart.
func TestFaultFlapping(t *testing.T) {
	s := simple(t)
	const flaps = 3
	s.inject(fault{
		name: "silent and answering in turns", reason: "timeout", extraLimits: 2 * flaps,
		begin: func() {
			for range flaps {
				began := time.Now()
				s.set(faultproxy.Blackhole)
				for i := range s.Nodes {
					eventually(t, "a node notices", func() error {
						if s.status(i).Redis.Up {
							return fmt.Errorf("node %d does not", i+1)
						}
						return nil
					})
				}
				silent := time.Since(began)
				s.set(faultproxy.None)
				eventually(t, "the nodes sync again", s.allSynced)
				time.Sleep(2 * silent) // part of the fault
			}
		},
		end: nothing,
	})
}
