//go:build chaos

package cluster_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// guessing are two nodes with zones of each algorithm in which five guesses may be wrong.
type guessing struct {
	*keeper
	names     []string
	caddyfile string
	reached   atomic.Int64 // guesses, the handler
}

func startGuessing(t *testing.T) *guessing {
	g := &guessing{keeper: newKeeper(&scenario{t: t})}
	handler := g.upstream.Config.Handler
	g.upstream.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.reached.Add(1)
		handler.ServeHTTP(w, r)
	})
	r := redistest.Start(t)
	var parts []string
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"} {
		for _, rate := range []string{"200ms", "strict"} {
			name := algorithm + "-" + rate
			g.names = append(g.names, name)
			parts = append(parts, zone(name, "limit 5/"+far, "algorithm "+algorithm, "sync_rate "+rate, "count_responses 401"))
		}
	}
	site := strings.Replace(g.site(), "@kept path /login /slogin /places /splaces", "@kept path /"+strings.Join(g.names, " /"), 1)
	g.caddyfile = config("redis "+r.URL+"\nstrict_timeout 20s", zones(parts...)+site)
	g.Cluster = start(t, 2, g.caddyfile)
	g.now.Store(&phase{name: "guessing"})
	for _, n := range g.Nodes {
		awaitUp(t, n)
	}
	t.Cleanup(g.freePlaces)
	return g
}

// A node that is killed leaves what it had reserved spent, as nobody knows how these guesses would
// have been answered, and what was settled stays. So no more than the limit reaches the handler,
// also not by the node when it is back.
func TestAKilledNodeLeavesItsReservationsSpent(t *testing.T) {
	t.Parallel()
	g := startGuessing(t)
	for _, name := range g.names {
		for range 2 {
			g.wrong(name, 0, http.StatusUnauthorized)
		}
		for range 2 {
			g.places.ends = append(g.places.ends, g.hold(0, name, "", "hangs", func() {}))
		}
	}
	redistest.Eventually(t, "all guesses have arrived", func() bool { return g.reached.Load() == int64(4*len(g.names)) })
	// The last one is for the other node, which then denies: it has heard of the rest.
	for _, name := range g.names {
		eventually(t, "the other node knows what is reserved, in "+name, func() error { return g.knows(name, 4) })
		g.wrong(name, 1, http.StatusUnauthorized)
		g.wrong(name, 1, http.StatusTooManyRequests)
	}
	g.Nodes[0].Kill()
	for _, name := range g.names {
		g.wrong(name, 1, http.StatusTooManyRequests)
	}
	if err := g.Nodes[0].Start(t.Context(), g.caddyfile); err != nil {
		t.Fatal(err)
	}
	for _, name := range g.names {
		before := g.reached.Load()
		eventually(t, "the node that is back knows", func() error {
			a, err := g.ask(0, name, "", "wrong")
			if err == nil && a.status != http.StatusTooManyRequests {
				err = fmt.Errorf("%s answers %d", name, a.status)
			}
			return err
		})
		// At an interval it knows with the first sync of the key, for which a request must come.
		if more := g.reached.Load() - before; strings.HasSuffix(name, "strict") && more > 0 {
			t.Errorf("%s: %d more guesses reached the handler", name, more)
		}
	}
	for _, text := range g.failed {
		t.Error(text)
	}
}

// knows returns an error unless the second node knows of so many units spent in a zone.
func (k *keeper) knows(zone string, want int64) error {
	// A right guess is refunded, and has the node ask.
	if a, err := k.ask(1, zone, "", ""); err != nil || a.status != http.StatusOK {
		return fmt.Errorf("a right guess is answered by %d: %v", a.status, err)
	}
	redistest.Pause(50 * time.Millisecond)
	s, err := k.Nodes[1].Status(k.t.Context())
	if z := s.Zone(zone); err == nil && z.SyncRate != "strict" && z.Remote < want {
		err = fmt.Errorf("it knows of %d", z.Remote)
	}
	return err
}

// wrong sends a wrong guess to a zone of a node, and wants a status.
func (k *keeper) wrong(zone string, node, want int) {
	k.t.Helper()
	if a, err := k.ask(node, zone, "", "wrong"); err != nil || a.status != want {
		k.t.Errorf("%s: a guess at node %d was answered by %d, want %d: %v", zone, node+1, a.status, want, err)
	}
}
