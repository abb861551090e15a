//go:build chaos

package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

const (
	manyZones  = 30
	manyTables = 2 * manyZones
	roundTrip  = 100 * time.Millisecond
)

// manyUnsent starts a node with thirty zones of two limits each, whose counts are not sent, and
// a Redis that takes long for each call from then on. It returns the names of the zones.
func manyUnsent(t *testing.T) (r *redistest.Server, p *faultproxy.Proxy, c *cluster.Cluster, names []string) {
	t.Helper()
	r = redistest.Start(t)
	p = faultproxy.Start(t, r.Addr)
	var parts []string
	for i := range manyZones {
		algorithm := []string{"fixed_window", "sliding_window", "token_bucket"}[i%3]
		names = append(names, fmt.Sprintf("zone%d", i))
		parts = append(parts, zone(names[i], "limit 1000000/1h 2000000/2h", "algorithm "+algorithm, "early_sync off"))
	}
	c = start(t, 1, config("redis redis://"+p.Addr+"\nsync_rate 1h", zones(parts...)))
	awaitFirstCycle(t, c.Nodes)
	requests := client(t, 4)
	for _, name := range names {
		admit(t, requests, c.Nodes, name, 5)
		if n := total(t, r, name); n != 0 {
			t.Fatalf("redis counts %d requests of %s an hour before its next sync", n, name)
		}
	}
	p.SetDelay(roundTrip)
	p.MostOpen()
	return r, p, c, names
}

// allSent fails unless Redis holds the last counts of each zone, in both limits, many were under
// way at once, and nothing was logged of counts that were not sent.
func allSent(t *testing.T, r *redistest.Server, p *faultproxy.Proxy, n *cluster.Node, names []string) {
	t.Helper()
	if most := p.MostOpen(); most < manyTables/10 {
		t.Errorf("at most %d calls were under way at once, of %d tables", most, manyTables)
	} else {
		t.Logf("%d calls were under way at once, of %d tables", most, manyTables)
	}
	for _, name := range names {
		if got := total(t, r, name); got != 10 {
			t.Errorf("redis counts %d requests of %s, want 5 in each of two limits", got, name)
		}
	}
	if lines := n.Log.With("TIDE015"); len(lines) != 0 {
		t.Errorf("the node logged that it could not send counts: %q", lines)
	}
}

// A node that gets a SIGTERM sends the last counts of all its tables side by side.
func TestTerminatedNodeSendsManyTablesAtOnce(t *testing.T) {
	t.Parallel()
	r, p, c, names := manyUnsent(t)
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	allSent(t, r, p, c.Nodes[0], names)
}
