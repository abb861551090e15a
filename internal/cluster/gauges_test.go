//go:build chaos

package cluster_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// held are requests that run until they are told to end, on nodes in front of one upstream.
type held struct {
	t      *testing.T
	client http.Client
	wg     sync.WaitGroup
	ends   []context.CancelFunc
}

// upstream answers at once with the beginning of a response, which goes on until its client leaves.
func upstream(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func newHeld(t *testing.T) *held {
	h := &held{t: t}
	t.Cleanup(func() {
		h.end(len(h.ends))
		h.wg.Wait()
	})
	return h
}

// ask sends a request to a zone of a node, and returns the status. One that is admitted goes on.
func (h *held) ask(n *cluster.Node, zone string) int {
	h.t.Helper()
	ctx, end := context.WithCancel(h.t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Addr+"/"+zone, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	a, err := h.client.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	h.ends = append(h.ends, end)
	h.wg.Go(func() {
		<-ctx.Done()
		a.Body.Close()
	})
	return a.StatusCode
}

// end ends the first of them.
func (h *held) end(count int) {
	for _, end := range h.ends[:count] {
		end()
	}
	h.ends = h.ends[count:]
}

// admitted asks until it is admitted, and returns how long that took.
func (h *held) admitted(n *cluster.Node, zone string, until time.Duration) time.Duration {
	h.t.Helper()
	began := time.Now()
	if !redistest.Poll(until, func() bool { return h.ask(n, zone) == http.StatusOK }) {
		h.t.Fatalf("%s: nothing was admitted for %s", zone, until)
	}
	return time.Since(began)
}

// The places of a node that is killed are free on the others 11 seconds and a sync later, those of
// one that loses its Redis as well, and no place is lost or made up when replies are lost and Redis
// forgets.
func TestFaultGauges(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	p := faultproxy.Start(t, r.Addr)
	const options = "concurrent 2\nkey all\n"
	site := zones(zone("interval", options), zone("strict", options+"sync_rate strict")) + "\nreverse_proxy " + upstream(t)
	caddyfile := config("redis "+strings.Replace(r.URL, r.Addr, p.Addr, 1)+"\nsync_rate 500ms\nstrict_timeout 2s", site)
	c := start(t, 2, strings.Replace(caddyfile, "respond ok", "", 1))
	a, b := c.Nodes[0], c.Nodes[1]
	for _, n := range c.Nodes {
		awaitUp(t, n)
	}
	names := []string{"interval", "strict"}
	onA, onB := newHeld(t), newHeld(t)
	for _, name := range names {
		for range 2 {
			if status := onA.ask(a, name); status != http.StatusOK {
				t.Fatalf("%s: %d for one of two", name, status)
			}
		}
		eventually(t, "the other node knows", func() error {
			if status := onB.ask(b, name); status == http.StatusOK {
				onB.end(len(onB.ends))
				return fmt.Errorf("%s: admitted", name)
			}
			return nil
		})
	}
	// Redis forgets, and replies are lost for a while.
	r.Do("FLUSHALL")
	p.Set(faultproxy.DropReplies)
	redistest.Pause(2 * time.Second)
	p.Set(faultproxy.None)
	onA.end(len(onA.ends))
	for _, name := range names {
		for range 2 {
			onB.admitted(b, name, 30*time.Second)
		}
		eventually(t, "the first node knows of both", func() error {
			if status := onA.ask(a, name); status == http.StatusOK {
				onA.end(len(onA.ends))
				return fmt.Errorf("%s: admitted", name)
			}
			return nil
		})
	}
	killed := time.Now()
	b.Kill()
	for _, name := range names {
		onA.admitted(a, name, 60*time.Second)
		t.Logf("%s: a place of the killed node is free after %s", name, time.Since(killed).Round(100*time.Millisecond))
	}
	if took := time.Since(killed); took < 5*time.Second {
		t.Errorf("they are free after %s: before what the node had said expired", took)
	}
}
