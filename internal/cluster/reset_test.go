//go:build chaos

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A key that was reset has all of its limit, once on all nodes together, as soon as the command
// says that all have applied it. Another client's count stays.
func TestAResetGivesAllOfTheLimitOnce(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	var names, parts []string
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"} {
		for _, rate := range []string{"200ms", "strict"} {
			name := algorithm + "_" + rate
			names = append(names, name)
			parts = append(parts, zone(name, "limit 30/"+far, "algorithm "+algorithm, "sync_rate "+rate))
		}
	}
	c := start(t, 3, config(slowRedis(r), zones(parts...)))
	awaitNodes(t, c.Nodes)
	for i, name := range names {
		if got := admitted(t, c.Nodes[i%3], name, 31); got != 30 {
			t.Fatalf("%s: %d of 31 requests are admitted, want 30", name, got)
		}
		awaitStatus(t, "/"+name, http.StatusTooManyRequests, c.Nodes...)
		line := "reset " + name + " 127.0.0.1"
		if i%3 == 2 {
			line = "reset " + name + " --all"
		}
		doneAtLast(t, c.Nodes[(i+1)%3], "Applied by 3 of 3 nodes.", line)
		if got := admitted(t, c.Nodes[(i+2)%3], name, 31); got != 30 {
			t.Errorf("%s: %d of 31 requests are admitted after the reset, want 30", name, got)
		}
	}
	for i, name := range names {
		for _, n := range c.Nodes {
			if strings.HasSuffix(name, "strict") && get(t, n, "/"+name) == http.StatusOK {
				t.Errorf("%s: node %d admits more than the limit", name, n.Number)
			}
		}
		awaitStatus(t, "/"+name, http.StatusTooManyRequests, c.Nodes...)
		status, body := post(t, c.Nodes[i%3], "/rate_limit/reset", fmt.Sprintf(`{"zone":%q,"key":"192.0.2.1"}`, name))
		if status != http.StatusOK || !strings.Contains(body, `"nodes":3,"applied":3`) || !strings.Contains(body, `"forgiven":0`) {
			t.Errorf("%s: a reset of another key answers %d %s", name, status, body)
		}
		awaitStatus(t, "/"+name, http.StatusTooManyRequests, c.Nodes...)
	}
}

// awaitNodes waits until all nodes know of all.
func awaitNodes(t *testing.T, nodes []*cluster.Node) {
	t.Helper()
	eventually(t, "all nodes are there", func() error {
		for _, n := range nodes {
			if out, _ := command(t, n, "status"); strings.Count(out, "ago  yes") != len(nodes) {
				return fmt.Errorf("node %d: %s", n.Number, out)
			}
		}
		return nil
	})
}

func admitted(t *testing.T, n *cluster.Node, name string, requests int) (count int) {
	t.Helper()
	for range requests {
		if get(t, n, "/"+name) == http.StatusOK {
			count++
		}
	}
	return count
}

// post sends a body to the admin endpoint of a node.
func post(t *testing.T, n *cluster.Node, path, body string) (status int, text string) {
	t.Helper()
	a, err := send(t.Context(), http.MethodPost, "http://"+n.Admin+path, body, "Content-Type", "application/json")
	if err != nil {
		t.Fatal(err)
	}
	return a.status, a.body
}

// usedOf is how much of a zone's last limit a key has used, as a node says: that of concurrent goes
// before.
func usedOf(n *cluster.Node, zone, key string) (used int64, err error) {
	a, err := send(context.Background(), http.MethodPost, "http://"+n.Admin+operate.ExplainPath, fmt.Sprintf(`{"zone":%q,"key":%q}`, zone, key), "Content-Type", "application/json")
	if err != nil {
		return 0, err
	}
	var x operate.Explained
	if err := json.Unmarshal([]byte(a.body), &x); err != nil || len(x.Zones) != 1 || len(x.Zones[0].Limits) == 0 {
		return 0, fmt.Errorf("explain: %d %s", a.status, a.body)
	}
	limits := x.Zones[0].Limits
	return limits[len(limits)-1].Used, nil
}
