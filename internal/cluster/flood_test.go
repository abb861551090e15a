//go:build chaos

package cluster_test

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// as makes requests those of a client.
func as(name string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Client", name) }
}

// flood sends requests of one client over so many connections, each as soon as its last is
// answered. While it lasts, others send their first request, one after the other, spread evenly.
func flood(t *testing.T, n *cluster.Node, path string, connections, requests, others int) (flooding, first *cluster.Tally) {
	flooding, first = new(cluster.Tally), new(cluster.Tally)
	c := client(t, connections)
	var wg sync.WaitGroup
	for range connections {
		wg.Go(func() {
			for flooding.Sent() < requests {
				c.Get(t.Context(), n.Addr, path, as("flooding"), flooding)
			}
		})
	}
	other := client(t, 1)
	for i := range others {
		redistest.Eventually(t, "the flood goes on", func() bool { return flooding.Sent() >= i*requests/others })
		other.Get(t.Context(), n.Addr, path, as(fmt.Sprint(i)), first)
	}
	wg.Wait()
	return flooding, first
}

// One flooded key of a strict zone is no loss of Redis, however late the node is with so many
// connections: the circuit stays closed, nobody else is denied, and the limit is enforced,
// whatever on_redis_loss is. Where another client had to wait for half of strict_timeout, Redis was
// late itself, as on a machine with other work: then all is tried again.
func TestAFloodedStrictKeyIsNoLossOfRedis(t *testing.T) {
	for _, rule := range []string{"deny", "allow", "local"} {
		t.Run(rule, func(t *testing.T) {
			for attempt := 1; ; attempt++ {
				lost, late := floodAStrictKey(t, rule)
				if lost == 0 {
					return
				}
				if late < 50*time.Millisecond || attempt == 4 {
					t.Fatalf("in attempt %d the circuit opened, or requests waited in vain, %d times beside a Redis that answers within %s, want 0", attempt, lost, late)
				}
			}
		})
	}
}

// floodAStrictKey returns how often a node took Redis for lost while one key was flooded, and how
// long another client of this Redis waited at most.
func floodAStrictKey(t *testing.T, rule string) (lost int64, late time.Duration) {
	const connections, others, requests = 1500, 30, 60000
	r := redistest.Start(t)
	c := start(t, 1, config("redis "+r.URL+"\nsync_rate strict", zones(
		zone("login", "key {http.request.header.Client}", "limit 5/"+far, "on_redis_loss "+rule))))
	ended, slowest := make(chan struct{}), make(chan time.Duration)
	go func() { slowest <- slowestPing(t, r, ended) }()
	began := time.Now()
	flooding, first := flood(t, c.Nodes[0], "/login", connections, requests, others)
	close(ended)
	late = <-slowest
	s, err := c.Nodes[0].Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	failed, why := flooding.Errors()
	t.Logf("%d requests over %d connections in %s: %d admitted, %d without an answer (%v), %d trips, %d timeouts, pings up to %s; others: %d admitted, %d denied, %d with 503",
		flooding.Sent(), connections, time.Since(began).Round(time.Millisecond), flooding.Admitted(), failed, why,
		s.Strict.Trips, s.Strict.Timeouts, late, first.Admitted(), first.Denied(), first.Status(http.StatusServiceUnavailable))
	if lost = int64(s.Strict.Trips + s.Strict.Timeouts); lost > 0 {
		return lost, late
	}
	if flooding.Admitted() > 5 || first.Admitted() != others {
		t.Errorf("%d requests of the client and %d of %d others were admitted, want 5 at most and all", flooding.Admitted(), first.Admitted(), others)
	}
	return 0, late
}

// slowestPing is how long Redis took at most to answer a client of another process, which is not
// late itself with what floods it.
func slowestPing(t *testing.T, r *redistest.Server, ended <-chan struct{}) (slowest time.Duration) {
	_, port, _ := net.SplitHostPort(r.Addr)
	for {
		select {
		case <-ended:
			return slowest
		default:
		}
		// It pings every 10 ms, and prints the shortest, the longest and the mean answer in ms.
		out, err := exec.Command("redis-cli", "-p", port, "--latency", "--raw", "-i", "0.3").Output()
		figures := strings.Fields(string(out))
		if err != nil || len(figures) != 4 {
			t.Errorf("redis-cli --latency: %q, %v", out, err)
			return slowest
		}
		ms, err := strconv.Atoi(figures[1])
		if err != nil {
			t.Error(err)
		}
		slowest = max(slowest, time.Duration(ms)*time.Millisecond)
	}
}
