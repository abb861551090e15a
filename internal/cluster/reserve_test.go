//go:build chaos

package cluster_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// admittedOf sends requests to nodes in turn and counts those that are admitted.
func admittedOf(t *testing.T, c *cluster.Client, nodes []*cluster.Node, path string, requests int, change func(*http.Request)) int {
	t.Helper()
	return c.Burst(t.Context(), nodes, path, requests, change).Admitted()
}

func pays(r *http.Request) { r.Header.Set("X-Plan", "paid") }

// On three nodes who pays finds the reserve, however many others come: exactly where Redis decides,
// and with an interval as exactly as counts are.
func TestReserveOnThreeNodes(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	options := "key all\nlimit 60/" + far + "\nreserve @paying 20%"
	c := start(t, 3, config(slowRedis(r), "@paying header X-Plan paid\n"+zones(
		zone("strict", options, "sync_rate strict"), zone("bucket", options, "sync_rate strict\nalgorithm token_bucket"), zone("shared", options, "sync_rate 100ms"))))
	all := client(t, 12)
	for _, name := range []string{"strict", "bucket"} {
		if got := admittedOf(t, all, c.Nodes, "/"+name, 150, nil); got != 48 {
			t.Errorf("%s: %d of those who don't pay were admitted, want 48", name, got)
		}
		if got := admittedOf(t, all, c.Nodes, "/"+name, 60, pays); got != 12 {
			t.Errorf("%s: %d of those who pay were admitted after them, want 12", name, got)
		}
	}
	// One node has all others, and then another one those who pay.
	if got := admittedOf(t, all, c.Nodes[:1], "/shared", 100, nil); got != 48 {
		t.Errorf("shared: %d of those who don't pay were admitted, want 48", got)
	}
	unaware := 0
	eventually(t, "another node knows", func() error {
		// With this request it asks the others.
		unaware += admittedOf(t, all, c.Nodes[1:2], "/shared", 1, nil)
		if out, _ := command(t, c.Nodes[1], "explain", "shared", "all"); !strings.Contains(out, "denied") {
			return errors.New(out)
		}
		return nil
	})
	// It guesses for a while that the first node goes on as it did.
	paid := 0
	eventually(t, "who pays finds the reserve there", func() error {
		if paid += admittedOf(t, all, c.Nodes[1:2], "/shared", 3, pays); paid+unaware < 12 {
			return fmt.Errorf("%d of those who pay were admitted, and %d others before", paid, unaware)
		}
		return nil
	})
	if paid += admittedOf(t, all, c.Nodes[1:2], "/shared", 30, pays); paid+unaware != 12 {
		t.Errorf("shared: %d of those who pay were admitted on another node, and %d others before it knew, want 12 in all", paid, unaware)
	}
}
