//go:build chaos

package cluster_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// Small limits on three nodes that are asked at once, while their configurations are replaced: with
// sync_rate strict each client gets its limit and not one request more, in each algorithm. At an
// interval the nodes admit a few too many.
func TestSmallLimitsOnThreeNodes(t *testing.T) {
	t.Parallel()
	const limit, clients, each = 10, 12, 60
	r := redistest.Start(t)
	var parts []string
	algorithms := []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"}
	for _, algorithm := range algorithms {
		for _, rate := range []string{"strict", "1s"} {
			name := algorithm + "-" + rate
			parts = append(parts, keyedZone(name, name, "limit 10/"+far, "algorithm "+algorithm, "sync_rate "+rate))
		}
	}
	text := config(slowRedis(r), zones(parts...))
	c, all := start(t, 3, text), client(t, 16)
	stop, over := make(chan struct{}), sync.WaitGroup{}
	over.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
			if err := c.Nodes[i%3].Reload(t.Context(), strings.Replace(text, "respond ok", fmt.Sprintf("respond ok-%d", i), 1)); err != nil {
				t.Error(err)
			}
		}
	})
	for _, algorithm := range algorithms {
		for _, rate := range []string{"strict", "1s"} {
			sum, most := 0, 0
			for k := range clients {
				path := fmt.Sprintf("/%s-%s?k=%d", algorithm, rate, k)
				got := all.Burst(t.Context(), c.Nodes, path, each, nil).Status(http.StatusOK)
				if sum, most = sum+got, max(most, got); rate == "strict" && got != limit || got < limit {
					t.Errorf("%s: %d of %d requests were admitted, want %d", path, got, each, limit)
				}
			}
			t.Logf("%s, sync_rate %s: limit %d, %.1f admitted, %d at most", algorithm, rate, limit, float64(sum)/clients, most)
		}
	}
	close(stop)
	over.Wait()
}

// Who waits as long as Retry-After says is admitted, on whichever node, though other requests of
// his were denied by a node's memory until then.
func TestRetryAfterOfSmallLimitsHolds(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	var parts []string
	algorithms := []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"}
	for _, algorithm := range algorithms {
		parts = append(parts, keyedZone(algorithm, algorithm, "limit 2/3s", "algorithm "+algorithm, "sync_rate strict"))
	}
	c := start(t, 3, config(slowRedis(r), zones(parts...)))
	var clients sync.WaitGroup
	for _, algorithm := range algorithms {
		for k := range 4 {
			clients.Go(func() { livesByRetryAfter(t, c.Nodes, fmt.Sprintf("/%s?k=%d", algorithm, k)) })
		}
	}
	clients.Wait()
}

// livesByRetryAfter asks until it is denied, goes on, waits, and is to be admitted then.
func livesByRetryAfter(t *testing.T, nodes []*cluster.Node, path string) {
	ask := func(i int) (status int, wait time.Duration) {
		a, err := send(t.Context(), http.MethodGet, "http://"+nodes[i%len(nodes)].Addr+path, "")
		if err != nil {
			t.Error(err)
		}
		return a.status, a.wait()
	}
rounds:
	for i, rounds := 0, 0; rounds < 2; i++ {
		status, wait := ask(i)
		if status == http.StatusOK {
			continue
		}
		told := time.Now()
		for range 20 {
			status, next := ask(i)
			if status == http.StatusOK {
				continue rounds // there is more by now, before all of the wait is over
			}
			if next > wait {
				t.Errorf("%s: %s to wait, and a moment later %s", path, wait, next)
			}
		}
		redistest.Pause(time.Until(told.Add(wait)))
		if status, more := ask(i + 1); status != http.StatusOK {
			t.Errorf("%s: status %d after the %s that were told, and %s more", path, status, wait, more)
		}
		rounds++
	}
}
