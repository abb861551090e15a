//go:build chaos

package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// Nodes whose limit, burst or sync interval differ, as in a rollout, share what they count, and one
// that was reloaded shares it with one that was just started.
func TestNodesWhoseParametersDifferShareABucket(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	kinds := []string{"token_bucket", "gcra"}
	// site is the limits of one node of a rollout; others is what the rest of the nodes have.
	site := func(one, others string) string {
		var all []string
		for _, kind := range kinds {
			all = append(all, zone(kind, "algorithm "+kind, "{{if eq .Node 1}}"+one+"{{else}}"+others+"{{end}}"))
		}
		return config(slowRedis(r), zones(all...))
	}
	const small, large, rare, low = "limit 50/1h\nburst 100\nsync_rate 100ms", "limit 100/1h\nburst 100\nsync_rate 100ms",
		"limit 100/1h\nburst 100\nsync_rate 700ms", "limit 100/1h\nburst 30\nsync_rate 100ms"
	for _, test := range []struct{ name, one, others, then string }{
		{"another limit", small, large, ""},
		{"another limit and interval", small, rare, ""},
		{"a smaller burst on the other", large, low, ""},
		{"a limit that is raised by a reload, beside a node that starts after it", small, small, large},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "-"), func(t *testing.T) {
			r.Do("FLUSHALL")
			c := start(t, 2, site(test.one, test.others))
			awaitUp(t, c.Nodes[0])
			one, other, requests := c.Nodes[:1], c.Nodes[1:], client(t, 8)
			admitted := make(map[string]int)
			for _, kind := range kinds {
				first := 130
				if test.then != "" {
					first = 90
				}
				admitted[kind] = requests.Burst(t.Context(), one, "/"+kind, first, nil).Admitted()
				awaitSent(t, one, kind)
			}
			if test.then != "" {
				if err := other[0].Stop(); err != nil {
					t.Fatal(err)
				}
				reload(t, one[0], site(test.then, test.then))
				if err := other[0].Start(t.Context(), site(test.then, test.then)); err != nil {
					t.Fatal(err)
				}
				for _, kind := range kinds {
					admitted[kind] += requests.Burst(t.Context(), one, "/"+kind, 40, nil).Admitted()
					awaitSent(t, one, kind)
				}
			}
			for _, kind := range kinds {
				// it knows nothing yet
				admitted[kind] += requests.Burst(t.Context(), other, "/"+kind, 1, nil).Admitted()
				awaitKnownTo(t, other[0], kind, admitted[kind])
				admitted[kind] += requests.Burst(t.Context(), other, "/"+kind, 130, nil).Admitted()
				// One request flows in every 36 s.
				if got := admitted[kind]; got < 100 || got > 103 {
					t.Errorf("%s: %d requests admitted, want 100, one by the node that had not heard of them, and what flows in", kind, got)
				}
			}
		})
	}
}

// awaitKnownTo waits until a node knows of so many requests.
func awaitKnownTo(t *testing.T, n *cluster.Node, zone string, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("node %d knows of %d requests in zone %s", n.Number, want, zone), func() error {
		if z := status(t, n, zone); z.Known() != int64(want) {
			return fmt.Errorf("it knows of %d: %+v", z.Known(), z)
		}
		return nil
	})
}
