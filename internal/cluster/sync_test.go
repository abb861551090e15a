//go:build chaos

package cluster_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A node that gets a SIGTERM while Redis is unavailable logs once for each zone how much the other
// nodes don't hear of.
func TestTerminatedNodeLogsWhatItCouldNotSend(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	c := start(t, 1, config("redis "+r.URL+"\nsync_rate 100ms", zones(
		zone("fixed", "limit 1000/"+far+" 100000/29d", "algorithm fixed_window"),
		zone("bucket", "limit 1000/"+far, "algorithm token_bucket"),
		zone("synced", "limit 1000/"+far, "algorithm gcra"),
		zone("strictbucket", "limit 1000/"+far, "algorithm token_bucket", "sync_rate strict"),
		zone("strictlog", "limit 1000/"+far, "algorithm sliding_log", "sync_rate strict"),
		zone("strictsynced", "limit 1000/"+far, "algorithm gcra", "sync_rate strict"),
	)))
	n, requests := c.Nodes[0], client(t, 4)
	for _, z := range []string{"strictbucket", "strictlog", "strictsynced"} {
		admit(t, requests, c.Nodes, z, 20)
		awaitSent(t, c.Nodes, z)
	}
	for _, z := range []string{"fixed", "bucket", "synced"} {
		admit(t, requests, c.Nodes, z, 20)
		awaitSent(t, c.Nodes, z)
	}
	r.Kill()
	eventually(t, "the outage is noticed", func() error {
		s, err := n.Status(t.Context())
		if err != nil || s.Redis.Up {
			return fmt.Errorf("%+v, %v", s.Redis, err)
		}
		return nil
	})
	some := []string{"fixed", "bucket", "strictbucket", "strictlog"}
	for _, z := range some {
		admit(t, requests, c.Nodes, z, 7)
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	lines := n.Log.With("TIDE015")
	slices.Sort(lines)
	if len(lines) != len(some) {
		t.Fatalf("%d lines have counts that were not sent, want one of each zone that had some: %q", len(lines), lines)
	}
	for _, z := range some {
		if !slices.ContainsFunc(lines, func(line string) bool {
			return strings.Contains(line, `"zone":"`+z+`"`) && strings.Contains(line, `"keys":1,"requests":7,`)
		}) {
			t.Errorf("no line has 7 requests of one key in zone %s: %q", z, lines)
		}
	}
}

// A Redis that is not there when the nodes start is no error; requests are limited by each node's
// own counts, and those arrive when it comes.
func TestRedisComesLate(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t, redistest.Unix())
	r.Kill()
	c := start(t, 2, config("redis "+r.URL+"\nsync_rate 100ms", zones(
		zone("wide", "limit 1000/"+far, "algorithm fixed_window"), zone("narrow", "limit 5/"+far, "algorithm fixed_window"))))
	requests := client(t, 4)
	admit(t, requests, c.Nodes, "wide", 40)
	if got := requests.Burst(t.Context(), c.Nodes[:1], "/narrow", 20, nil).Admitted(); got != 5 {
		t.Errorf("without Redis a node admitted %d requests at limit 5", got)
	}
	r.Restart()
	awaitTotal(t, r, "wide", 40)
	awaitTotal(t, r, "narrow", 5)
	for _, n := range c.Nodes {
		awaitUp(t, n)
		eventually(t, "the node tells it", func() error {
			if len(n.Log.With("sync with redis works again")) == 0 {
				return errors.New("no line says that it works again")
			}
			return nil
		})
		down, up := n.Log.With("sync with redis fails"), n.Log.With("sync with redis works again")
		if len(down) != 1 || len(up) != 1 {
			t.Errorf("node %d wrote %d lines on the way down and %d on the way up, want one each", n.Number, len(down), len(up))
		}
		for _, line := range n.Log.Lines() {
			if !strings.HasPrefix(line, "{") {
				t.Errorf("node %d wrote past the log: %s", n.Number, line)
			}
		}
	}
}

// A bucket that is full again is no longer needed to decide, but its epoch's total still is: a node
// that forgot it would report less.
func TestForgottenBucketTakesNothingBack(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	all := map[string]string{
		"slow": "600/1m", // full again long before its epoch is over
		"fast": "10/1s",  // forgotten, epoch and all
	}
	var parts []string
	for name, limit := range all {
		parts = append(parts, zone(name, "limit "+limit, "algorithm token_bucket"))
	}
	c := start(t, 1, config("redis "+r.URL+"\nsync_rate 50ms", "rate_limit {\n"+strings.Join(parts, "")+"sweep_interval 20ms\n}"))
	requests := client(t, 4)
	high := make(map[string]int)
	watch := func() {
		for name := range all {
			for hash, sum := range sums(t, r, name) {
				if sum < high[hash] {
					t.Errorf("the sum of %s fell from %d to %d", hash, high[hash], sum)
				}
				high[hash] = max(high[hash], sum)
			}
		}
	}
	for round := range 3 {
		for name := range all {
			admit(t, requests, c.Nodes, name, 8)
			awaitTotal(t, r, name, 8*(round+1))
		}
		watch()
		eventually(t, "the fast bucket is forgotten and the slow one full again", func() error {
			watch()
			if z := status(t, c.Nodes[0], "fast"); z.Keys != 0 {
				return fmt.Errorf("%+v", z)
			}
			return nil
		})
	}
}

// Every zone syncs at its own sync_rate, its handler's or the global one.
func TestZonesSyncAtTheirOwnRates(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	const options = "limit 1000000/" + far + "\nalgorithm fixed_window\nearly_sync off"
	site := zones(
		zone("fast", options, "sync_rate 50ms"), zone("slow", options, "sync_rate 1h"), zone("inherited", options), "sync_rate 500ms\n",
	)
	began := time.Now()
	c := start(t, 1, config("redis "+r.URL+"\nsync_rate 2h", site))
	n := c.Nodes[0]
	awaitFirstCycle(t, c.Nodes)
	requests := client(t, 4)
	for _, z := range []string{"fast", "slow", "inherited"} {
		load(t, requests, c.Nodes, z, 200)
	}
	// A busy machine leaves cycles out, so their numbers are compared over the shortest time that
	// shows a difference.
	var fast, inherited int64
	eventually(t, "the fast zone has six cycles while the other has one", func() error {
		f, i := status(t, n, "fast").Sync.Cycles, status(t, n, "inherited").Sync.Cycles
		if i > inherited+1 {
			fast, inherited = f, i
		}
		if inherited == 0 || f < fast+6 {
			return fmt.Errorf("%d cycles, and %d", f-fast, i-inherited)
		}
		return nil
	})
	eventually(t, "the zone that inherits its sync_rate has eight cycles", func() error {
		if i := status(t, n, "inherited").Sync.Cycles; i < 8 {
			return fmt.Errorf("%d cycles", i)
		}
		return nil
	})
	cycles, most := status(t, n, "inherited").Sync.Cycles, int64(time.Since(began)/(500*time.Millisecond))+1
	if cycles > most {
		t.Errorf("a zone with sync_rate 500ms had %d cycles, want %d at most in %v", cycles, most, time.Since(began))
	}
	for _, z := range []string{"fast", "inherited"} {
		// one may be under way
		if got, most := int64(pushes(t, r, z)), status(t, n, z).Sync.Cycles; got < 2 || got > most+1 {
			t.Errorf("zone %s was sent %d times in %d cycles", z, got, most)
		}
	}
	if got := pushes(t, r, "slow"); got != 0 {
		t.Errorf("a zone with sync_rate 1h was sent %d times after its first cycle", got)
	}
	if z := status(t, n, "slow"); z.Sync.Cycles != 1 || z.Own == 0 || z.Unsent != z.Own {
		t.Errorf("a zone with sync_rate 1h has had %d cycles, and of %d requests %d are unsent; want one cycle, before all of them", z.Sync.Cycles, z.Own, z.Unsent)
	}
}

// pushes is how often the only node has sent a zone's only key: the number of its last message.
func pushes(t *testing.T, s *redistest.Server, zone string) int {
	t.Helper()
	for hash := range sums(t, s, zone) {
		fields := s.Do("HGETALL", hash)
		for name, value := range fields.(map[any]any) {
			if name != "sum" && name != "at" {
				n, _ := strconv.Atoi(strings.Fields(value.(string))[0])
				return n
			}
		}
	}
	return 0
}

// Nodes of one cluster find each other, and a namespace keeps clusters apart that share a Redis.
func TestNamespacesAreApart(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	site := zones(zone("fixed", "limit 100/"+far, "algorithm fixed_window"))
	shop := start(t, 2, config("redis "+r.URL+"\nsync_rate 100ms\nnamespace shop", site))
	blog := start(t, 1, config("redis "+r.URL+"\nsync_rate 100ms\nnamespace blog", site))
	requests := client(t, 4)
	admit(t, requests, shop.Nodes, "fixed", 20)
	admit(t, requests, blog.Nodes, "fixed", 5)
	awaitSent(t, slices.Concat(shop.Nodes, blog.Nodes), "fixed")
	admit(t, requests, blog.Nodes, "fixed", 1)
	awaitKnown(t, blog.Nodes, "fixed", 6)
	for _, of := range []struct {
		*cluster.Cluster
		nodes int64
	}{{shop, 2}, {blog, 1}} {
		eventually(t, "nodes know how many they are", func() error {
			s, err := of.Nodes[0].Status(t.Context())
			if err != nil || s.Redis.Nodes != of.nodes {
				return fmt.Errorf("%+v, %v, want %d", s.Redis, err, of.nodes)
			}
			return nil
		})
	}
}
