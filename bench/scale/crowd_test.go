package main

import (
	"os"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// What a crowd of nodes may cost, counted and not timed: the connections that they hold, and what
// they send again when Redis has lost all.
func TestThreeHundredNodes(t *testing.T) {
	const nodes, keys = 300, 20
	c, err := startCrowd(t, nodes, keys, idle)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if n := c.server.Info("clients", "connected_clients"); n > 4*nodes {
		t.Errorf("%d connections of %d nodes, want four for each at most", n, nodes)
	}
	messages, _, _, err := c.lose(25 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if messages < 1 || messages > 2.2 {
		t.Errorf("%.2f messages for each key and node after a loss, want one, and 2.2 at most", messages)
	}
	redistest.Eventually(t, "Redis has all totals again", func() bool {
		return c.server.Do("DBSIZE").(int64) >= keys
	})
}

// TestMain stands in for main where the crowd asks from a process of its own.
func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == "-ask" {
		d, err := time.ParseDuration(os.Args[4])
		if err == nil {
			err = askStrictly(os.Args[2], d)
		}
		if err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}
