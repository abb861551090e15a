package cluster_test

import (
	"path/filepath"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
)

// restart starts a node again with what it left on its disk.
func restart(t *testing.T, n *cluster.Node, caddyfile string) {
	t.Helper()
	if err := n.Start(t.Context(), caddyfile); err != nil {
		t.Fatal(err)
	}
}

// What was admitted until a SIGTERM took effect, under load, is what the next process knows; after
// a kill -9 it is what was known when the killed one started.
func TestPersistOverRealRestarts(t *testing.T) {
	t.Parallel()
	for _, persist := range []string{"persist", "persist " + filepath.Join(t.TempDir(), "counters")} {
		site := config(persist, zones(zone("kept", wide, "key all", "algorithm fixed_window")))
		c := start(t, 1, site)
		n, requests := c.Nodes[0], client(t, 8)
		tally, stop := load(t, requests, c.Nodes, "kept", 200)
		awaitAnswers(t, tally, 40)
		if err := n.Stop(); err != nil {
			t.Fatal(err)
		}
		stop()
		requests.Close()
		restart(t, n, site)
		admit(t, requests, c.Nodes, "kept", 1) // brings the key back
		// A request whose connection the end broke may have been counted, and sent again on
		// another: on each of the 8 connections one.
		lost, _ := tally.Errors()
		known, least := status(t, n, "kept").Known(), int64(tally.Admitted()+1)
		if known < least || known > least+int64(lost)+8 {
			t.Errorf("%s: after SIGTERM and a restart the node knows of %d requests, want %d, and up to %d more", persist, known, least, lost+8)
		}
		admit(t, requests, c.Nodes, "kept", 20)
		requests.Close()
		n.Kill()
		restart(t, n, site)
		admit(t, requests, c.Nodes, "kept", 1)
		if got, want := status(t, n, "kept").Known(), known-1+1; got != want {
			t.Errorf("%s: after kill -9 and a restart the node knows of %d requests, want %d, as when the killed one started", persist, got, want)
		}
	}
}

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
