//go:build chaos

package cluster_test

import (
	"fmt"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// From one Redis to regions, node by node, and back: counts go on, and the other region learns of
// those that were there before.
func TestFromOneRedisToRegionsAndBack(t *testing.T) {
	t.Parallel()
	eu, us, c := redistest.Start(t), redistest.Start(t), client(t, 4)
	site := zones(zone("z", "key all", "limit 100/"+far), zone("b", "key all", "limit 100/"+far, "algorithm token_bucket"),
		zone("s", "key all", "limit 100/"+far, "sync_rate strict"))
	in := func(here string) string {
		return config("regions {\n\there "+here+"\n\tregion eu "+eu.URL+"\n\tregion us "+us.URL+"\n}", site)
	}
	one := config("redis "+eu.URL, site)
	nodes := start(t, 2, one).Nodes
	both := func(total int, of ...*redistest.Server) {
		t.Helper()
		for _, zone := range []string{"z", "b", "s"} {
			for _, r := range of {
				awaitTotal(t, r, zone, total)
			}
		}
	}
	count := func(n int, of ...*cluster.Node) {
		t.Helper()
		admit(t, c, of, "z", n)
		admit(t, c, of, "b", n)
		admit(t, c, of, "s", n)
	}
	count(30, nodes...)
	both(30, eu)
	other := start(t, 1, in("us")).Nodes
	reload(t, nodes[0], in("eu"))
	count(10, nodes...) // one of the nodes doesn't know of regions yet
	both(40, eu)
	reload(t, nodes[1], in("eu"))
	count(10, nodes...)
	both(50, eu, us)
	count(5, other...)
	both(55, eu, us)
	for _, n := range nodes {
		reload(t, n, one)
	}
	count(6, nodes...)
	both(61, eu)
	eventually(t, "the nodes still know what the other region has counted", func() error {
		for _, n := range nodes {
			for _, zone := range []string{"z", "b"} {
				if known := status(t, n, zone).Known(); known != 61 {
					return fmt.Errorf("node %d knows %d of 61 in %s", n.Number, known, zone)
				}
			}
		}
		return nil
	})
}
