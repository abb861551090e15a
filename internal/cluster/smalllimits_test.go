//go:build chaos

package cluster_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

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
