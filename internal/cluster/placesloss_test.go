//go:build chaos

package cluster_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// What a limit on what runs at once comes to without Redis is what on_redis_loss says, on each of
// three nodes: with a Cluster and with sentinels, at an interval and strict. When Redis is back,
// the limit is that of all nodes again.
func TestPlacesWithoutRedis(t *testing.T) {
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, 3)
		placesWithoutRedis(t, c.URL, "shards", func() {
			for _, s := range c.Nodes {
				s.Kill()
			}
		}, func() {
			for _, s := range c.Nodes {
				s.Restart()
			}
			c.Wait()
		})
	})
	t.Run("Sentinel", func(t *testing.T) {
		t.Parallel()
		w := redistest.StartSentinels(t, 3)
		placesWithoutRedis(t, w.URL, "heartbeat", func() {
			w.Replica.Kill()
			w.Master.Kill()
		}, func() {
			w.Master.Restart()
			w.Replica.Restart()
		})
	})
}

// placesWithoutRedis kills a Redis, of whose loss nodes learn in the end by this part of a
// heartbeat.
func placesWithoutRedis(t *testing.T, url, by string, kill, restart func()) {
	const places = 3
	rules := map[string]int{"local": places, "divide": places / nodeCount, "allow": places + 1, "deny": 0}
	var parts, names []string
	for rule := range rules {
		for _, rate := range []string{"200ms", "strict"} {
			names = append(names, rule+"-"+rate)
			parts = append(parts, zone(rule+"-"+rate, fmt.Sprint("concurrent ", places), "key {http.request.uri.query.k}", "on_redis_loss "+rule, "sync_rate "+rate))
		}
	}
	site := zones(parts...) + "\nreverse_proxy " + upstream(t)
	c := start(t, nodeCount, strings.Replace(config("redis "+url+"\nstrict_timeout 2s", site), "respond ok", "", 1))
	eventually(t, "each node knows of the others", func() error {
		all, err := c.Status(t.Context())
		for _, s := range all {
			if err == nil && s.Redis.Nodes != nodeCount {
				err = fmt.Errorf("%+v", s.Redis)
			}
		}
		return err
	})
	h := newHeld(t)
	for _, name := range names {
		admitsPlaces(t, h, c.Nodes[0], name+"?k=before", places, http.StatusTooManyRequests)
	}
	kill()
	redisIs(t, c, by, false)
	for _, name := range names {
		rule, _, _ := strings.Cut(name, "-")
		denial := http.StatusTooManyRequests
		if rule == "deny" {
			denial = http.StatusServiceUnavailable
		}
		for _, n := range c.Nodes {
			admitsPlaces(t, h, n, name+"?k=without", rules[rule], denial)
		}
	}
	restart()
	redisIs(t, c, by, true)
	h.end(len(h.ends))
	for _, name := range names {
		sharesPlaces(t, h, c.Nodes, name, places)
	}
}

// redisIs waits until each node has noticed whether Redis is up.
func redisIs(t *testing.T, c *cluster.Cluster, by string, up bool) {
	t.Helper()
	eventually(t, fmt.Sprint("each node has noticed that Redis is up: ", up), func() error {
		all, err := c.Status(t.Context())
		for _, s := range all {
			// A call of one zone that failed tells nothing for the others.
			if err == nil && (s.Redis.Up != up || (s.Redis.Failing[by] == "") != up) {
				err = fmt.Errorf("%+v", s.Redis)
			}
		}
		return err
	})
}

// sharesPlaces waits until a new key has the limit once on all nodes.
func sharesPlaces(t *testing.T, h *held, nodes []*cluster.Node, name string, places int) {
	t.Helper()
	eventually(t, "the limit is that of all nodes", func() error {
		key := fmt.Sprintf("%s?k=after%d", name, len(h.ends))
		for range places {
			if got := h.ask(nodes[0], key); got != http.StatusOK {
				return fmt.Errorf("%s: %d for one that is free", name, got)
			}
		}
		redistest.Eventually(t, "the others know", func() bool { return h.ask(nodes[1], key) == http.StatusTooManyRequests })
		if got := h.ask(nodes[2], key); got == http.StatusOK && strings.HasSuffix(name, "strict") {
			return fmt.Errorf("%s: one more runs", name)
		}
		return nil
	})
	h.end(len(h.ends))
}

// admitsPlaces asks for one more place than there are for all nodes, and wants so many to be given
// out, and then a status.
func admitsPlaces(t *testing.T, h *held, n *cluster.Node, path string, want, denial int) {
	t.Helper()
	for i := range 4 {
		status := http.StatusOK
		if i >= want {
			status = denial
		}
		if got := h.ask(n, path); got != status {
			t.Errorf("request %d to %s on node %d was answered by %d, want %d", i+1, path, n.Number, got, status)
		}
	}
}
