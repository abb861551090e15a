package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
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
	pairLimit  = 5   // of a client
	pairShared = 200 // of all; enough for what is admitted, and what is under way
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
	of := func(algorithm string, limit int) string {
		options := fmt.Sprintf("match {\npath /%s\n}\nalgorithm %s\nlimit %d/%s\n", p.path, algorithm, limit, far)
		if strings.Contains("token_bucket gcra", algorithm) {
			options += fmt.Sprintf("burst %d\n", limit)
		}
		return options
	}
	return fmt.Sprintf("zone %s {\nkey all\n%s}\nzone %s {\nkey {http.request.header.Client}\n%s}\n",
		shared, of(p.shared, pairShared), client, of(p.client, pairLimit))
}

// Two strict zones deny what the other one grants, on three nodes that are 20 ms away from Redis and
// for a while get no replies. What a denied request took is not spent in the end: Redis has of both
// zones what was admitted, and no other client was denied.
func TestFaultStrictZonesDenyEachOther(t *testing.T) {
	t.Parallel()
	requests := 200 // of each pair, in each phase
	if *long {
		requests = 5000
	}
	r := redistest.Start(t)
	var proxies []*faultproxy.Proxy
	var url, site strings.Builder
	for i := range sceneNodes {
		p := faultproxy.Start(t, r.Addr)
		p.SetDelay(20 * time.Millisecond)
		proxies = append(proxies, p)
		fmt.Fprintf(&url, "{{if eq .Node %d}}redis://%s{{end}}", i+1, p.Addr)
	}
	for _, p := range pairs {
		site.WriteString(p.caddyfile())
	}
	c := start(t, sceneNodes, config("redis "+url.String()+"\nsync_rate strict\nstrict_timeout 500ms", zones(site.String())))
	for _, n := range c.Nodes {
		isUp(t, n)
	}
	var all []*denied
	for _, p := range pairs {
		all = append(all, p.flood(t, c.Nodes))
	}
	set := func(f faultproxy.Fault) {
		for _, p := range proxies {
			p.Set(f)
		}
	}
	phase := func() {
		for _, d := range all {
			answered(t, d.flooding, requests/2)
			d.others(7)
			answered(t, d.flooding, requests/2)
		}
	}
	phase()
	set(faultproxy.DropReplies)
	eventually(t, "each node has lost replies", func() error {
		status, err := c.Status(t.Context())
		for i, s := range status {
			if err == nil && s.Strict.Trips == 0 {
				err = fmt.Errorf("node %d has not", i+1)
			}
		}
		return err
	})
	phase()
	set(faultproxy.None)
	phase()
	for _, d := range all {
		d.stop()
		d.check(r)
	}
}

// denied is a client of a pair that asks for far more than its limit, and others that ask once each.
type denied struct {
	pair
	t               *testing.T
	nodes           []*cluster.Node
	client          *cluster.Client
	flooding, first *cluster.Tally
	came            int // others
	stop            func()
}

// flood sends requests of one client over ten connections to each node, until it is stopped.
func (p pair) flood(t *testing.T, nodes []*cluster.Node) *denied {
	const connections = 10
	d := &denied{pair: p, t: t, nodes: nodes, client: client(t, connections*len(nodes)), flooding: new(cluster.Tally), first: new(cluster.Tally)}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range connections * len(nodes) {
		wg.Go(func() {
			for ctx.Err() == nil {
				d.client.Get(context.Background(), nodes[i%len(nodes)].Addr, "/"+p.path, as("flooding"), d.flooding)
				time.Sleep(20 * time.Millisecond) // a node that decides alone answers at once
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
		d.client.Get(context.Background(), d.nodes[d.came%len(d.nodes)].Addr, "/"+d.path, as(fmt.Sprint(d.came)), d.first)
		d.came++
	}
}

func (d *denied) check(r *redistest.Server) {
	t := d.t
	t.Helper()
	t.Logf("%s: %d requests, %d admitted; of %d others %d", d.path, d.flooding.Sent(), d.flooding.Admitted(), d.came, d.first.Admitted())
	if d.first.Admitted() != d.came {
		t.Errorf("%s: of %d others %d were admitted and %d denied, want all admitted", d.path, d.came, d.first.Admitted(), d.first.Refused())
	}
	// Each node may have admitted the limit by itself while it got no replies.
	const most = (1 + sceneNodes) * pairLimit
	if got := d.flooding.Admitted(); got < pairLimit || got > most || got+d.flooding.Refused() != d.flooding.Sent() {
		t.Errorf("%s: %d of %d requests of the client were admitted and %d denied, want %d to %d, and an answer to all",
			d.path, got, d.flooding.Sent(), d.flooding.Refused(), pairLimit, most)
	}
	shared, client := d.names()
	want := d.flooding.Admitted() + d.first.Admitted()
	for zone, algorithm := range map[string]string{shared: d.shared, client: d.pair.client} {
		eventually(t, "redis counts what was admitted", func() error {
			got := 0
			if strings.HasSuffix(algorithm, "window") {
				got = total(t, r, zone)
			} else {
				got = strictTotal(t, r, zone)
			}
			if got != want {
				return fmt.Errorf("zone %s (%s): it counts %d, clients saw %d admitted", zone, algorithm, got, want)
			}
			return nil
		})
	}
}
