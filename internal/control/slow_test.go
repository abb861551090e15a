//go:build chaos

package control

import (
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// Over a slow Redis changes and resets are acknowledged by all nodes, one after the other, straight
// after FLUSHALL and from the first heartbeat after a failover to a replica that lags behind.
func TestChangesOverASlowRedis(t *testing.T) {
	t.Parallel()
	w := redistest.StartSentinel(t)
	proxy := faultproxy.Start(t, w.Master.Addr)
	var nodes []*tnode
	for _, name := range []string{"a", "b", "c"} {
		through := *w.Master
		through.Addr = proxy.Addr
		nodes = append(nodes, withTable(t, startNode(t, &through, name)))
	}
	redistest.Eventually(t, "all nodes are there", func() bool { return nodes[0].rep.Nodes() == 3 })
	proxy.SetDelay(20 * time.Millisecond)
	count, id := 0, keys.IDOf([]byte("alice"))
	measure := func(what string, f func(*tnode)) {
		t.Helper()
		var took []time.Duration
		for range redistest.Times(5, 100) {
			began := time.Now()
			f(nodes[count%3])
			count++
			took = append(took, time.Since(began).Round(time.Millisecond))
		}
		slices.Sort(took)
		t.Logf("%d %s: the median is acknowledged by 3 of 3 nodes within %v, the slowest within %v", len(took), what, took[len(took)/2], took[len(took)-1])
	}
	change := func(n *tnode) { n.enforce(t, "login", float64(count%100)/100, 3) }
	reset := func(n *tnode) {
		for _, n := range nodes {
			n.take(10)
		}
		n.reset(t, &id, 3)
		for i, n := range nodes {
			if left := n.left(); left != 30 {
				t.Errorf("node %d has %d left after a reset, want 30", i, left)
			}
		}
	}
	measure("changes", change)
	measure("resets", reset)
	w.Master.Do("FLUSHALL")
	measure("changes after FLUSHALL", change)
	w.Master.Do("FLUSHALL")
	measure("resets after FLUSHALL", reset)
	last := nodes[0].Zone("login").Load().Enforce.Share()
	failOver := func() {
		t.Helper()
		w.Failover()
		proxy.Lead(w.Master.Addr)
		heartbeats(t, nodes)
	}
	failOver()
	for _, n := range nodes {
		if !n.sees("login", last) {
			t.Errorf("the failover has changed the share to %v, want %v", n.Zone("login").Load(), last)
		}
	}
	measure("changes after a failover", change)
	w.Rejoin()
	failOver()
	measure("resets after a failover", reset)
}

// heartbeats waits until each node has had an answered heartbeat.
func heartbeats(t *testing.T, nodes []*tnode) {
	t.Helper()
	began := clock.Now()
	redistest.Eventually(t, "each node has had a heartbeat", func() bool {
		for _, n := range nodes {
			n.mu.Lock()
			answered := n.record.answeredAt
			n.mu.Unlock()
			if answered < began {
				return false
			}
		}
		return true
	})
}
