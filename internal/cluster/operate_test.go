//go:build chaos

package cluster_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// The overrides of a file are set on all nodes, and removed by the same file.
func TestOverridesOfAFileOnThreeNodes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "customers.csv")
	if err := os.WriteFile(file, []byte("127.0.0.1,unlimited\n192.0.2.1,deny,Example Ltd\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := start(t, 3, config("redis "+redistest.Start(t).URL, zones(zone("none", "limit 0/"+far))))
	doneAtLast(t, c.Nodes[1], "none: 2 overrides set on 3 of 3 nodes", "override none --for forever -f "+file)
	for _, n := range c.Nodes {
		if got := get(t, n, "/none"); got != http.StatusOK {
			t.Errorf("node %d answers %d, want 200", n.Number, got)
		}
	}
	// A busy machine may say that a node has yet to apply it.
	if out, _ := command(t, c.Nodes[2], "override", "none", "--remove", "-f", file); !strings.Contains(out, "none: 2 overrides removed on ") {
		t.Errorf("the overrides of a file are removed: %s", out)
	}
	eventually(t, "no node has an override", func() error {
		for _, n := range c.Nodes {
			if got := get(t, n, "/none"); got != http.StatusTooManyRequests {
				return fmt.Errorf("node %d answers %d", n.Number, got)
			}
		}
		return nil
	})
	if out, code := command(t, c.Nodes[0], "override", "none", "--remove", "-f", file); code != 1 || !strings.Contains(out, "nothing to remove") {
		t.Errorf("overrides that are not there: exit code %d, want 1: %s", code, out)
	}
}

// What was changed on a node that keeps its counters over a restart is there after a kill.
func TestChangesSurviveAKill(t *testing.T) {
	t.Parallel()
	site := config("persist "+t.TempDir()+"/counters", zones(zone("none", "limit 0/"+far)))
	c := start(t, 1, site)
	n := c.Nodes[0]
	done(t, n, "none: not enforced on this node", "enforce none off")
	n.Kill()
	if err := n.Start(t.Context(), site); err != nil {
		t.Fatal(err)
	}
	if got := get(t, n, "/none"); got != http.StatusOK {
		t.Errorf("it answers %d after a kill, want 200", got)
	}
	done(t, n, "none: enforced as configured", "enforce none --remove")
	n.Kill()
	if err := n.Start(t.Context(), site); err != nil {
		t.Fatal(err)
	}
	if got := get(t, n, "/none"); got != http.StatusTooManyRequests {
		t.Errorf("it answers %d after another kill, want 429", got)
	}
}
