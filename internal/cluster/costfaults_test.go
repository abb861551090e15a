//go:build chaos && unix

package cluster_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// Payers are nodes whose zones, a window, a bucket and a log in each mode, reserve 40 units for
// each request, until a header of its response says what it has cost. A request is in all of them,
// and may be held in its handler.
type payers struct {
	*cluster.Cluster
	t        *testing.T
	site     string
	upstream *httptest.Server
	zones    []string
	arrived  chan struct{}
	open     sync.WaitGroup

	mu   sync.Mutex
	held map[string]chan struct{}
}

const paid, less, more = 40, 30, 200

func startPayers(t *testing.T, nodes int, options string) *payers {
	p := &payers{t: t, arrived: make(chan struct{}), held: make(map[string]chan struct{})}
	p.upstream = httptest.NewServer(http.HandlerFunc(p.answer))
	t.Cleanup(p.upstream.Close)
	text := ""
	for _, rate := range []string{"local", "200ms", "strict"} {
		for _, algorithm := range []string{"fixed_window", "token_bucket", "sliding_log"} {
			name := algorithm + "-" + rate
			p.zones = append(p.zones, name)
			text += keyedZone(name, "pay", "limit 1000/"+far, "algorithm "+algorithm, "sync_rate "+rate, "cost {http.request.uri.query.n}", fmt.Sprint("cost_default ", paid), "response_cost header X-Cost")
		}
	}
	p.site = config(options, "route {\n"+zones(text)+"\nreverse_proxy "+p.upstream.Listener.Addr().String()+"\n}")
	p.Cluster = start(t, nodes, p.site)
	awaitFirstCycle(t, p.Nodes)
	return p
}

func (p *payers) answer(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if name := q.Get("held"); name != "" {
		p.mu.Lock()
		end := p.held[name]
		p.mu.Unlock()
		p.arrived <- struct{}{}
		select {
		case <-end:
		case <-r.Context().Done():
			return
		}
	}
	w.Header().Set("X-Cost", q.Get("cost"))
}

// ask sends a request that reserves nothing and costs nothing. The node hears of the others by it.
func (p *payers) ask(node int, key string) {
	p.t.Helper()
	if status := get(p.t, p.Nodes[node], "/pay?k="+key+"&n=0&cost=0"); status != http.StatusOK {
		p.t.Fatalf("a request of %s at node %d is answered by %d", key, node+1, status)
	}
}

// hold has a request of each cost wait in its handler, a small one and a large one, and end has
// them answered.
func (p *payers) hold(node int, key string) (end func()) {
	p.t.Helper()
	ends := make(chan struct{})
	for _, cost := range []int{less, more} {
		name := fmt.Sprintf("%s-%d-%d", key, node, cost)
		p.mu.Lock()
		p.held[name] = ends
		p.mu.Unlock()
		p.open.Go(func() {
			_, _ = send(context.Background(), http.MethodGet, fmt.Sprintf("http://%s/pay?k=%s&cost=%d&held=%s", p.Nodes[node].Addr, key, cost, name), "")
		})
		select {
		case <-p.arrived:
		case <-time.After(time.Minute):
			p.t.Fatalf("a request of %s has not arrived from node %d", key, node+1)
		}
	}
	return sync.OnceFunc(func() { close(ends) })
}

// uses returns how much each zone has used of a key, as a node says.
func (p *payers) uses(node int, key string) map[string]int64 {
	p.t.Helper()
	used := make(map[string]int64)
	for _, zone := range p.zones {
		var err error
		if used[zone], err = usedOf(p.Nodes[node], zone, key); err != nil {
			p.t.Fatal(err)
		}
	}
	return used
}

// settles waits until a node says that a key has used so much in each zone, and in those that count
// on the node alone local. A bucket gets no part of a unit back, so that it may keep one of each
// node. A bucket in Redis, where many requests have come and gone since, may refund nothing at all:
// what they had is taken for what drains last. So may zones that keep refunds.
func (p *payers) settles(node int, key string, want, local int64, keep ...string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("node %d says that %d and in local zones %d of %s are used", node+1, want, local, key), func() error {
		p.ask(node, key)
		all := p.uses(node, key)
		for zone, used := range all {
			least := want
			if strings.HasSuffix(zone, "local") {
				least = local
			}
			most := least
			switch {
			case zone == "token_bucket-strict" || slices.Contains(keep, zone):
				most += int64(len(p.Nodes)) * (paid - less)
			case strings.HasPrefix(zone, "token_bucket"):
				most += int64(len(p.Nodes)) + 2 // and of processes that were there before
			}
			if used < least || used > most {
				return fmt.Errorf("%v", all)
			}
		}
		return nil
	})
}

// knowsOfRedis waits until each node knows that Redis answers, or that it doesn't.
func (p *payers) knowsOfRedis(up bool) {
	p.t.Helper()
	for _, n := range p.Nodes {
		eventually(p.t, fmt.Sprintf("a node knows that Redis answers: %t", up), func() error {
			p.ask(n.Number-1, "other")
			s, err := n.Status(p.t.Context())
			if err != nil || s.Redis.Up != up || (s.Strict.Open == 0) != up {
				return fmt.Errorf("%+v, %+v, %v", s.Redis, s.Strict, err)
			}
			return nil
		})
	}
}

// What a killed node has reserved stays spent, and no more. A node that gets no CPU for longer than
// Redis remembers that it was there, and the others believe what it has reserved, settles exactly
// when it goes on.
func TestSettlementsOfNodesThatAreKilledAndSuspended(t *testing.T) {
	t.Parallel()
	p := startPayers(t, 3, slowRedis(redistest.Start(t)))
	stays, ends, lates := p.hold(2, "kill"), p.hold(0, "kill"), p.hold(1, "stop")
	// The last one knows that the second has told of the request that it was asked by.
	for _, node := range []int{0, 1, 0} {
		p.settles(node, "kill", 4*paid, int64(2*(1-node)*paid))
	}
	p.Nodes[2].Kill()
	if err := p.Nodes[1].Suspend(); err != nil {
		t.Fatal(err)
	}
	ends()
	lates()
	p.settles(0, "kill", 2*paid+less+more, less+more)
	p.settles(0, "stop", 2*paid, 0)
	p.hold(0, "stop")()
	time.Sleep(35 * time.Second) // the fault itself
	p.settles(0, "stop", 2*paid+less+more, less+more)
	if err := p.Nodes[1].Resume(); err != nil {
		t.Fatal(err)
	}
	restart(t, p.Nodes[2], p.site)
	p.open.Wait()
	stays()
	for node, local := range []int64{less + more, less + more, 0} {
		p.settles(node, "stop", 2*(less+more), local)
	}
	for node, local := range []int64{less + more, 0, 0} {
		p.settles(node, "kill", 2*paid+less+more, local)
	}
}

// While Redis is away for longer than corrections are sent again: what was reserved before and is
// settled then, what is reserved and settled then, and what is reserved then and settled after it.
// Of what was on its way when Redis went refunds may stay spent, and charges be lost. A log in
// Redis refunds nothing that this node had reserved alone, and Redis has been charged with since.
func TestSettlementsWithoutRedis(t *testing.T) {
	t.Parallel()
	proxy := faultproxy.Start(t, redistest.Start(t).Addr)
	p := startPayers(t, 2, "redis redis://"+proxy.Addr+"?timeout=20s\nstrict_timeout 2s")
	var flight, before, over []func()
	for node := range p.Nodes {
		flight, before = append(flight, p.hold(node, "flight")), append(before, p.hold(node, "before"))
	}
	for node := range p.Nodes {
		p.settles(node, "flight", 4*paid, 2*paid)
		p.settles(node, "before", 4*paid, 2*paid)
	}
	proxy.Set(faultproxy.Reset)
	for _, end := range flight {
		end()
	}
	p.knowsOfRedis(false)
	for _, end := range before {
		end()
	}
	for node := range p.Nodes {
		p.hold(node, "within")()
		over = append(over, p.hold(node, "over"))
	}
	time.Sleep(40 * time.Second) // the fault itself
	proxy.Set(faultproxy.None)
	p.knowsOfRedis(true)
	for _, end := range over {
		end()
	}
	p.open.Wait()
	for node := range p.Nodes {
		p.settles(node, "before", 2*(less+more), less+more)
		p.settles(node, "within", 2*(less+more), less+more)
		p.settles(node, "over", 2*(less+more), less+more, "sliding_log-strict")
	}
	eventually(t, "what was under way when Redis went is used once", func() error {
		p.ask(0, "flight")
		for zone, used := range p.uses(0, "flight") {
			least, most := int64(2*(less+more)), int64(2*(less+more)+1)
			switch {
			case strings.HasSuffix(zone, "local"):
				least, most = least/2, most/2+1
			case strings.HasSuffix(zone, "strict"):
				least, most = 2*(less+paid), 2*(paid+more)
			}
			if used < least || used > most {
				return fmt.Errorf("%s: %d are used, want %d to %d", zone, used, least, most)
			}
		}
		return nil
	})
}
