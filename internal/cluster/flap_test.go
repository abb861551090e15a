//go:build chaos

package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A Redis that comes and goes is logged once a minute, and the status is exact all the while.
func TestFlappingRedisIsLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	proxy := faultproxy.Start(t, r.Addr)
	c := start(t, 1, config("redis redis://"+proxy.Addr+"\nsync_rate 100ms", zones(zone("fixed", wide, "algorithm fixed_window"))))
	n := c.Nodes[0]
	is := func(up bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("the status has redis up: %t", up), func() error {
			s, err := n.Status(t.Context())
			if err == nil && s.Redis.Up != up {
				err = fmt.Errorf("%v", s.Redis.Failing)
			}
			return err
		})
	}
	awaitUp(t, n)
	began := time.Now()
	const flaps = 6
	for range flaps {
		proxy.Set(faultproxy.Reset)
		is(false)
		eventually(t, "the outage is logged", func() error {
			if len(n.Log.With(lineDown)) == 0 {
				return fmt.Errorf("%s", n.Log.Tail(3))
			}
			return nil
		})
		proxy.Set(faultproxy.None)
		is(true)
	}
	down, up := n.Log.With(lineDown), n.Log.With(lineUp)
	if most := 1 + int(time.Since(began)/time.Minute); len(down) > most || len(up) != len(down) {
		t.Errorf("%d lines down and %d up in %v and %d outages, want %d pairs at most: %q", len(down), len(up), time.Since(began), flaps, most, down)
	}
}

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
