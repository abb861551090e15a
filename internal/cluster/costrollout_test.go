//go:build chaos

package cluster_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A depot takes uploads and answers with a body of a random length. It adds up what the requests
// that reach it cost by the configuration that each of them came through: 1 where it has no cost,
// else the bytes of the upload and those of the answer. One with "held" waits until end is closed.
type depot struct {
	*httptest.Server
	t       *testing.T
	nodes   []*cluster.Node
	arrived chan struct{}

	mu       sync.Mutex
	end      chan struct{}
	up, down int
	seen     map[string]int // requests by node and configuration
}

func newDepot(t *testing.T) *depot {
	d := &depot{t: t, arrived: make(chan struct{}), seen: make(map[string]int)}
	d.Server = httptest.NewServer(http.HandlerFunc(d.answer))
	t.Cleanup(d.Close)
	return d
}

func (d *depot) answer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		d.t.Errorf("an upload was cut: %v", err)
	}
	came, length := r.Header.Get("X-Came"), 1+rand.IntN(400)
	d.mu.Lock()
	end := d.end
	if strings.HasSuffix(came, "bytes") {
		d.up, d.down = d.up+len(body), d.down+length
	} else {
		d.up, d.down = d.up+1, d.down+1
	}
	d.seen[came]++
	d.mu.Unlock()
	if r.URL.Query().Has("held") {
		d.arrived <- struct{}{}
		<-end
	}
	_, _ = w.Write(make([]byte, length))
}

// upload sends a body of a random length to a node. A reload may break a connection before its
// request is read.
func (d *depot) upload(node int, query string) {
	// A connection is used once, so that no reload closes one that a request is just sent on.
	a, err := send(context.Background(), http.MethodPost, "http://"+d.nodes[node].Addr+"/depot?k=one"+query, strings.Repeat("0", 1+rand.IntN(200)), "Connection", "close")
	if err == nil && a.status != http.StatusOK {
		d.t.Errorf("node %d answered an upload with %d", node+1, a.status)
	}
}

// awaits waits until so many more requests of a configuration have come from a node.
func (d *depot) awaits(node int, cost string, more int) {
	d.t.Helper()
	came, want := fmt.Sprint(node+1, cost), 0
	eventually(d.t, "requests come through "+came, func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if want == 0 {
			want = d.seen[came] + more
		}
		if n := d.seen[came]; n < want {
			return fmt.Errorf("%d of %d", n, want)
		}
		return nil
	})
}

// deploy gives a node another configuration while one of its requests is under way, which is
// answered after others have come through the new one.
func (d *depot) deploy(node int, cost, site string) {
	d.t.Helper()
	end := make(chan struct{})
	d.mu.Lock()
	d.end = end
	d.mu.Unlock()
	var open sync.WaitGroup
	open.Go(func() { d.upload(node, "&held") })
	eventually(d.t, "a request is held", func() error {
		select {
		case <-d.arrived:
			return nil
		default:
			return fmt.Errorf("none has arrived at node %d", node+1)
		}
	})
	var failed error
	open.Go(func() { failed = d.nodes[node].Reload(d.t.Context(), site) })
	d.awaits(node, cost, 5)
	close(end)
	open.Wait()
	if failed != nil {
		d.t.Fatal(failed)
	}
}

// drains is what a bucket of a depot drains in 30 days.
const drains = 20_000

// depotSite is a node's site with a zone of uploads and one of answers for each algorithm and mode,
// whose names it returns without the first part. With "bytes" they have a cost.
func depotSite(d *depot, r *redistest.Server, cost string) (site string, names []string) {
	var parts []string
	for _, name := range []string{
		"fixed_window-200ms", "sliding_window-200ms", "sliding_log-200ms", "token_bucket-200ms", "gcra-200ms",
		// A strict log counts up to 1024.
		"fixed_window-strict", "sliding_window-strict", "token_bucket-strict", "gcra-strict",
	} {
		algorithm, rate, _ := strings.Cut(name, "-")
		options := []string{"algorithm " + algorithm, "sync_rate " + rate, "limit 10000000/" + far}
		up, down := []string{"cost bytes", "cost_default 1"}, []string{"cost 150", "response_cost bytes"}
		if algorithm == "token_bucket" || algorithm == "gcra" {
			// A bucket doesn't refund parts of a unit, so that all is charged here.
			options, down[0] = append(options[:2], fmt.Sprintf("limit %d/%s", drains, far), "burst 2000000"), "cost 1"
		}
		if cost != "bytes" {
			up, down = nil, nil
		}
		parts = append(parts, keyedZone("up-"+name, "depot", slices.Concat(options, up)...), keyedZone("down-"+name, "depot", slices.Concat(options, down)...))
		names = append(names, name)
	}
	text := config(slowRedis(r), "route {\n"+zones(parts...)+"\nreverse_proxy "+d.Listener.Addr().String()+" {\nheader_up X-Came {{.Node}}"+cost+"\n}\n}")
	return strings.Replace(text, "grace_period 5s", "grace_period 2m", 1), names
}

// traffic has each node take one upload after the other, until stop is called.
func (d *depot) traffic() (stop func()) {
	done := make(chan struct{})
	var traffic sync.WaitGroup
	for node := range d.nodes {
		traffic.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					d.upload(node, "")
				}
			}
		})
	}
	return sync.OnceFunc(func() {
		close(done)
		traffic.Wait()
	})
}

// Under traffic three nodes get a cost in bytes one after the other, of uploads and of answers, and
// lose it again: windows, buckets and logs, strict ones too, hold the sum of what both
// configurations said. Requests that are under way cost what the one says that they came through.
func TestARollingReloadToBytesAndBack(t *testing.T) {
	t.Parallel()
	d, r, began := newDepot(t), redistest.Start(t), time.Now()
	before := "one"
	site, names := depotSite(d, r, before)
	d.nodes = start(t, 3, site).Nodes
	awaitFirstCycle(t, d.nodes)
	stop := d.traffic()
	defer stop()
	for node := range d.nodes {
		d.awaits(node, before, 5)
	}
	for _, cost := range []string{"bytes", "one"} {
		site, _ := depotSite(d, r, cost)
		for node := range d.nodes {
			d.deploy(node, cost, site)
			for other := range d.nodes[:node+1] {
				d.awaits(other, cost, 5)
			}
			for other := range d.nodes[node+1:] {
				d.awaits(node+1+other, before, 5)
			}
		}
		before = cost
	}
	stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		d.holds(r, "up-"+name, d.up, began)
		d.holds(r, "down-"+name, d.down, began)
	}
}

// holds waits until a zone of Redis, and all nodes together, have counted what the depot says. Of a
// strict bucket Redis has what hasn't drained yet.
func (d *depot) holds(r *redistest.Server, zone string, want int, began time.Time) {
	d.t.Helper()
	eventually(d.t, fmt.Sprintf("%s holds %d", zone, want), func() error {
		var got, least int
		own := want
		switch {
		case !strings.HasSuffix(zone, "strict"):
			own = 0
			for _, n := range d.nodes {
				own += int(status(d.t, n, zone).Own)
			}
			got, least = total(d.t, r, zone), want
		case strings.Contains(zone, "window"):
			got, least = total(d.t, r, zone), want
		default:
			got, least = filled(d.t, r, zone), want-int(drains*time.Since(began)/(30*24*time.Hour))-1
		}
		if got < least || got > want || own != want {
			return fmt.Errorf("it holds %d, and the nodes have counted %d", got, own)
		}
		return nil
	})
}
