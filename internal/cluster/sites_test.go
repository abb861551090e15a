package cluster_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// sites is a Caddyfile whose sites have all the same unnamed limit.
func sites(options string, names ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "{\n\tadmin {{.Admin}}\n\thttp_port {{.Port}}\n\tdefault_bind 127.0.0.1\n\tgrace_period 5s\n\trate_limit {\n\t\t%s\n\t}\n}\n", options)
	for _, name := range names {
		fmt.Fprintf(&b, "http://%s {\n\trate_limit 3/%s\n\trespond ok\n}\n", name, far)
	}
	return b.String()
}

// spends sends requests to a site and fails unless the first ones are admitted and one more is
// denied.
func spends(t *testing.T, c *cluster.Client, n *cluster.Node, site string, admitted int) {
	t.Helper()
	for i := range admitted + 1 {
		want := http.StatusOK
		if i == admitted {
			want = http.StatusTooManyRequests
		}
		if got := c.Get(t.Context(), n.Addr, "/", func(r *http.Request) { r.Host = site }, new(cluster.Tally)); got != want {
			t.Fatalf("request %d to %s got status %d, want %d", i+1, site, got, want)
		}
	}
}

// Sites come, go and move with reloads, and a client that has spent its limit in one of them has
// still all of it in every other one, and nothing more where it had spent it.
func TestReloadOfSitesKeepsTheirCounts(t *testing.T) {
	t.Parallel()
	c := start(t, 1, sites("", "a.test", "b.test", "c.test"))
	requests, n := client(t, 1), c.Nodes[0]
	spends(t, requests, n, "a.test", 3)
	reload(t, n, sites("", "b.test", "c.test"))
	spends(t, requests, n, "b.test", 3)
	reload(t, n, sites("", "d.test", "c.test", "b.test"))
	spends(t, requests, n, "b.test", 0)
	spends(t, requests, n, "c.test", 3)
	spends(t, requests, n, "d.test", 3)
}

// While nodes with one site less roll out, the sites they have in common share their counts through
// Redis, and no others.
func TestRolloutOfSitesSharesTheirCounts(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	options := slowRedis(r) + "\nsync_rate strict"
	c := start(t, 2, sites(options, "a.test", "b.test"))
	requests := client(t, 1)
	reload(t, c.Nodes[1], sites(options, "b.test"))
	spends(t, requests, c.Nodes[0], "a.test", 3)
	spends(t, requests, c.Nodes[1], "b.test", 3)
	spends(t, requests, c.Nodes[0], "b.test", 0)
}
