//go:build chaos

package cluster_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// penalized are the zones with count_denied that a client floods, and for how many windows it is
// locked out at most after its last request.
var penalized = []struct {
	name, algorithm string
	strict          bool
	windows         int
}{
	{"strict_fixed", "fixed_window", true, 1},
	{"strict_log", "sliding_log", true, 1},
	{"strict_token", "token_bucket", true, 1},
	{"fixed", "fixed_window", false, 1},
	{"sliding", "sliding_window", false, 2}, // until the window that was flooded has passed by
	{"log", "sliding_log", false, 1},
	{"token", "token_bucket", false, 1},
	{"gcra", "gcra", false, 1},
}

// A client that goes on where denied requests count is locked out while it does, and for a window
// after it: nothing that was denied is charged to a later one. Each node is far from Redis, and has
// more denied requests of a key in a round trip than a call for a log can carry one by one.
func TestFaultFloodWithCountDenied(t *testing.T) {
	t.Parallel()
	const window, slack = time.Second, time.Second
	r := redistest.Start(t)
	p := faultproxy.Start(t, r.Addr)
	var parts []string
	for _, z := range penalized {
		options := []string{"algorithm " + z.algorithm, "limit 10/1s", "count_denied"}
		if z.strict {
			options = append(options, "sync_rate strict")
		}
		parts = append(parts, zone(z.name, options...))
	}
	c := start(t, 2, config("redis redis://"+p.Addr+"?timeout=20s\nstrict_timeout 20s\nsync_rate 100ms", zones(parts...)))
	for _, n := range c.Nodes {
		awaitUp(t, n)
	}
	p.SetDelay(100 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 3*window)
	defer cancel()
	requests := client(t, 1000)
	ended, clock, tallies := make([]time.Time, len(penalized)), make([]time.Time, len(penalized)), make([]cluster.Tally, len(penalized))
	var wg sync.WaitGroup
	for i, z := range penalized {
		wg.Go(func() {
			sendAnyway(ctx, requests, c.Nodes[0], z.name, &tallies[i])
			ended[i], clock[i] = time.Now(), redisTime(t, r)
		})
	}
	wg.Wait()
	for i, z := range penalized {
		// the time that the client sends nothing, which is what is tested
		time.Sleep(time.Until(ended[i].Add(time.Duration(z.windows)*window + slack)))
		if z.algorithm == "fixed_window" || z.algorithm == "sliding_window" {
			// Nodes know Redis' clock as well as the round trip lets them.
			last := clock[i].Add(window / 2).Unix()
			for key, fields := range cells(t, r, z.name) {
				sum := fields["sum"] // total stamp end epoch ...
				words := append(strings.Fields(sum), "", "", "", "")
				if epoch, err := strconv.ParseInt(words[3], 10, 64); err != nil || epoch > last && words[0] != "0" {
					t.Errorf("%s has %q (%v), though the client has sent nothing since %d", key, sum, err, last)
				}
			}
		}
		first := make([]int, len(c.Nodes))
		for j, n := range c.Nodes {
			first[j] = requests.Get(t.Context(), n.Addr, "/"+z.name, nil, new(cluster.Tally))
		}
		t.Logf("%s: %d of %d admitted; %s later %v", z.name, tallies[i].Admitted(), tallies[i].Sent(), time.Since(ended[i]).Round(time.Millisecond), first)
		for j, status := range first {
			if status != 200 {
				t.Errorf("zone %s of node %d answers a client %d that has sent nothing for %d windows and %s, after %d requests of which %d were denied",
					z.name, j+1, status, z.windows, slack, tallies[i].Sent(), tallies[i].Denied())
			}
		}
	}
}

// sendAnyway sends requests of one client to a zone, over a hundred connections and whatever the
// answers, until a context ends, and returns when all are answered.
func sendAnyway(ctx context.Context, c *cluster.Client, n *cluster.Node, zone string, tally *cluster.Tally) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for range 100 {
		wg.Go(func() {
			for ctx.Err() == nil {
				c.Get(context.Background(), n.Addr, "/"+zone, nil, tally)
				if !strings.HasPrefix(zone, "strict") {
					redistest.Pause(time.Second) // where no request waits
				}
			}
		})
	}
}

// redisTime returns what a server's clock shows.
func redisTime(t *testing.T, r *redistest.Server) time.Time {
	c := r.Client()
	defer c.Close()
	now, err := c.Time(context.Background()).Result()
	if err != nil {
		t.Error(err)
	}
	return now
}
