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

// Nodes whose configurations differ in the numbers of a zone, as in the middle of a roll-out, share
// its counts, and each goes by its own number. What is set at run time holds on all of them.
func TestNodesWithUnequalSettings(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	site := func(plan, fixed, enforce string) string {
		return config(slowRedis(r)+"\nsync_rate strict", "map {header.X-User} {plan} {\nalice "+plan+"\ndefault 1\n}\n"+zones(
			zone("plans", "key {header.X-User}", "limit {plan}/"+far, "limit_default 1/"+far),
			zone("fixed", "key {header.X-User}", "limit "+fixed+"/"+far),
			zone("tried", "key {header.X-User}", "limit 5/"+far, "enforce "+enforce)))
	}
	c := start(t, 3, site("10", "5", "off"))
	for i, text := range []string{site("20", "10", "100%"), site("unlimited", "15", "100%")} {
		if err := c.Nodes[i+1].Reload(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	all := client(t, 1)
	expect := func(what string, node int, path string, requests, want int) {
		t.Helper()
		alice := func(r *http.Request) { r.Header.Set("X-User", "alice") }
		if got := admittedOf(t, all, c.Nodes[node:node+1], path, requests, alice); got != want {
			t.Errorf("%s: node %d admitted %d of %d, want %d", what, node+1, got, requests, want)
		}
	}
	expect("a plan of 10", 0, "/plans", 12, 10)
	expect("a plan of 20, of which 10 are spent", 1, "/plans", 12, 10)
	expect("no limit", 2, "/plans", 30, 30)
	expect("a plan of 10, of which 20 are spent", 0, "/plans", 3, 0)

	expect("5", 0, "/fixed", 7, 5)
	expect("10, of which 5 are spent", 1, "/fixed", 7, 5)
	expect("15, of which 10 are spent", 2, "/fixed", 3, 3)
	doneAtLast(t, c.Nodes[0], "on 3 of 3 nodes", "override fixed alice 14")
	expect("14 on all, of which 13 are spent", 0, "/fixed", 3, 1)
	expect("14 on all, which are spent", 1, "/fixed", 3, 0)
	expect("14 on all, which are spent", 2, "/fixed", 3, 0)
	done(t, c.Nodes[1], "on 3 of 3 nodes", "override fixed alice --remove")
	expect("15 again", 2, "/fixed", 3, 1)
	doneAtLast(t, c.Nodes[2], "on 3 of 3 nodes", "override plans alice 25")
	expect("25 in place of no limit, of which 20 are spent", 2, "/plans", 9, 5)
	expect("25 in place of 10", 0, "/plans", 3, 0)

	expect("in shadow mode", 0, "/tried", 9, 9) // 5 are counted
	expect("enforced", 1, "/tried", 3, 0)
	doneAtLast(t, c.Nodes[1], "on 3 of 3 nodes", "enforce tried 100%")
	expect("enforced at run time", 0, "/tried", 3, 0)
	doneAtLast(t, c.Nodes[0], "on 3 of 3 nodes", "enforce tried off")
	expect("not enforced at run time", 1, "/tried", 3, 3)
	done(t, c.Nodes[2], "on 3 of 3 nodes", "enforce tried --remove")
	expect("in shadow mode again", 0, "/tried", 3, 3)
	expect("enforced again", 2, "/tried", 3, 0)
}
