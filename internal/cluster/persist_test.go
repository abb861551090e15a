//go:build chaos

package cluster_test

import (
	"path/filepath"
	"testing"
)

// Two processes that were given one file by mistake don't damage it: the next ones know what one of
// them had counted.
func TestTwoProcessesWithOnePersistFile(t *testing.T) {
	t.Parallel()
	site := config("persist "+filepath.Join(t.TempDir(), "counters"), zones(zone("shared", wide, "key all", "algorithm fixed_window")))
	c := start(t, 2, site)
	requests := client(t, 4)
	admit(t, requests, c.Nodes[:1], "shared", 10)
	admit(t, requests, c.Nodes[1:], "shared", 20)
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	requests.Close()
	for i, n := range c.Nodes {
		restart(t, n, site)
		admit(t, requests, c.Nodes[i:i+1], "shared", 1)
		if got := status(t, n, "shared").Known(); got != 11 && got != 21 {
			t.Errorf("node %d knows of %d requests, want 11 or 21", n.Number, got)
		}
		for _, line := range append(n.Log.With("could not be read"), n.Log.With("can't be saved")...) {
			t.Errorf("node %d: %s", n.Number, line)
		}
	}
}
