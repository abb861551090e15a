//go:build chaos

package cluster_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A pair is two strict zones that a request must pass both: one that all clients share, and one for
// each client.
type pair struct {
	path           string
	shared, client string // algorithms
	first          string // is the zone whose name comes first
}

var pairs = []pair{
	{"windows", "fixed_window", "fixed_window", "shared"},
	{"buckets", "token_bucket", "gcra", "client"},
	{"logs", "sliding_log", "sliding_window", "shared"},
}

const (
	pairLimit = 60 // of a client
	// of all: enough for what is admitted and what is under way, and less than a client has
	pairShared = 58
	pairSpent  = 6 // clients that have spent their limit on another path
)

// names are those of the zones.
func (p pair) names() (shared, client string) {
	if p.first == "shared" {
		return "a_" + p.path, "b_" + p.path
	}
	return "b_" + p.path, "a_" + p.path
}

func (p pair) caddyfile() string {
	shared, client := p.names()
	of := func(algorithm string, limit int, paths string) string {
		options := fmt.Sprintf("match {\npath %s\n}\nalgorithm %s\nlimit %d/%s\n", paths, algorithm, limit, far)
		if strings.Contains("token_bucket gcra", algorithm) {
			options += fmt.Sprintf("burst %d\n", limit)
		}
		return options
	}
	return fmt.Sprintf("zone %s {\nkey all\n%s}\nzone %s {\nkey {http.request.header.Client}\n%s}\n",
		shared, of(p.shared, pairShared, "/"+p.path), client, of(p.client, pairLimit, "/"+p.path+" /"+p.path+"free"))
}

// Two strict zones deny what the other one grants, on three nodes that are 20 ms away from Redis
// and for a while get no replies. Clients have spent their limits at one node, which the others
// don't know: as the shared zone has less left they ask that one first, which grants. What a denied
// request took is rolled back in the end: Redis has of both zones what was admitted, and no other
// client was denied.
func TestFaultStrictZonesDenyEachOther(t *testing.T) {
	t.Parallel()
	const requests = 3000 // of each pair, in each phase
	r := redistest.Start(t)
	var proxies []*faultproxy.Proxy
	var url, site strings.Builder
	for i := range nodeCount {
		p := faultproxy.Start(t, r.Addr)
		p.SetDelay(20 * time.Millisecond)
		proxies = append(proxies, p)
		fmt.Fprintf(&url, "{{if eq .Node %d}}redis://%s{{end}}", i+1, p.Addr)
	}
	for _, p := range pairs {
		site.WriteString(p.caddyfile())
	}
	c := start(t, nodeCount, config("redis "+url.String()+"\nsync_rate strict\nstrict_timeout 500ms", zones(site.String())))
	for _, n := range c.Nodes {
		awaitUp(t, n)
	}
	var all []*denied
	for _, p := range pairs {
		all = append(all, p.flood(t, c.Nodes))
	}
	phase := func() {
		for _, d := range all {
			awaitAnswers(t, d.flooding, requests/2)
			d.others(4)
			awaitAnswers(t, d.flooding, requests/2)
		}
	}
	phase()
	for _, p := range proxies {
		p.Set(faultproxy.DropReplies)
	}
	circuits(t, c, "each node has lost replies", func(s cluster.Circuits) bool { return s.Trips > 0 })
	phase()
	for _, p := range proxies {
		p.Set(faultproxy.None)
	}
	circuits(t, c, "each node asks Redis again", func(s cluster.Circuits) bool { return s.Open == 0 })
	for _, d := range all {
		d.second.Store(true)
	}
	phase()
	for _, d := range all {
		d.stop()
		d.check(r)
	}
}

// circuits waits until those of all nodes are as they should be.
func circuits(t *testing.T, c *cluster.Cluster, what string, right func(cluster.Circuits) bool) {
	t.Helper()
	eventually(t, what, func() error {
		status, err := c.Status(t.Context())
		for i, s := range status {
			if err == nil && !right(s.Strict) {
				err = fmt.Errorf("node %d: %+v", i+1, s.Strict)
			}
		}
		return err
	})
}

// denied are clients of a pair that have spent their limit and go on, and others that ask once
// each.
type denied struct {
	pair
	t               *testing.T
	nodes           []*cluster.Node
	client          *cluster.Client
	flooding, first *cluster.Tally
	newcomers       int // that have asked
	// the second half of the clients that have spent their limit is there, not the first
	second atomic.Bool
	stop   func()
}

// flood sends requests of clients over five connections to each node, until it is stopped.
func (p pair) flood(t *testing.T, nodes []*cluster.Node) *denied {
	const connections = 5
	d := &denied{pair: p, t: t, nodes: nodes, client: client(t, connections*len(nodes)), flooding: new(cluster.Tally), first: new(cluster.Tally)}
	spent := func(i int) func(*http.Request) { return as(fmt.Sprint("spent", i)) }
	for i := range pairSpent {
		if tally := d.client.Burst(t.Context(), nodes[:1], "/"+p.path+"free", pairLimit, spent(i)); tally.Admitted() != pairLimit {
			t.Fatalf("%s: %d of %d requests of a client were admitted, want all", p.path, tally.Admitted(), pairLimit)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range connections * len(nodes) {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				who := n % (pairSpent / 2)
				if d.second.Load() {
					who += pairSpent / 2
				}
				d.client.Get(context.Background(), nodes[i%len(nodes)].Addr, "/"+p.path, spent(who), d.flooding)
				redistest.Pause(20 * time.Millisecond) // a node that decides alone answers at once
			}
		})
	}
	d.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(d.stop)
	return d
}

// others sends a request of each of so many clients that were not there before.
func (d *denied) others(n int) {
	for range n {
		d.client.Get(context.Background(), d.nodes[d.newcomers%len(d.nodes)].Addr, "/"+d.path, as(fmt.Sprint(d.newcomers)), d.first)
		d.newcomers++
	}
}

func (d *denied) check(r *redistest.Server) {
	t := d.t
	t.Helper()
	t.Logf("%s: %d requests, %d admitted; of %d others %d", d.path, d.flooding.Sent(), d.flooding.Admitted(), d.newcomers, d.first.Admitted())
	if d.first.Admitted() != d.newcomers {
		t.Errorf("%s: of %d others %d were admitted and %d denied, want all admitted", d.path, d.newcomers, d.first.Admitted(), d.first.Denied())
	}
	if got := d.flooding.Admitted() + d.flooding.Denied(); got != d.flooding.Sent() {
		_, err := d.flooding.Errors()
		t.Errorf("%s: %d of %d requests of the clients were answered with 200 or 429, want all; the first error: %v", d.path, got, d.flooding.Sent(), err)
	}
	shared, client := d.names()
	admitted := d.flooding.Admitted() + d.first.Admitted()
	for zone, algorithm := range map[string]string{shared: d.shared, client: d.pair.client} {
		want := admitted
		if zone == client {
			want += pairSpent * pairLimit
		}
		eventually(t, "redis counts what was admitted", func() error {
			got := 0
			if strings.HasSuffix(algorithm, "window") || algorithm == "sliding_log" {
				got = total(t, r, zone)
			} else {
				got = filled(t, r, zone)
			}
			if got != want {
				return fmt.Errorf("zone %s (%s): it counts %d, clients saw %d admitted", zone, algorithm, got, want)
			}
			return nil
		})
	}
}
