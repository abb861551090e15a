package ratesync

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// shardsOf are the shards whose keys a server of a Cluster has.
func shardsOf(c *redistest.ClusterOf, node int) (shards uint64) {
	for i := range ShardCount {
		if c.Owner(c.Slot(fmt.Sprintf("{%d}", i))) == node {
			shards |= 1 << i
		}
	}
	return shards
}

// keyOf is a key of some of the shards that nobody has used.
func keyOf(shards uint64, n int) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("%d of %x %d", n, shards, i)
		if HasShardOf(shards, keys.IDOf([]byte(key))) {
			return key
		}
	}
}

// A master of a Cluster that is gone takes its own keys along and no others, whichever it is:
// the one with the heartbeats, too. Both is noticed though the next cycle is an hour away.
func TestAMasterThatIsGoneTakesItsShardsOnly(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	heartbeats := c.Owner(c.Slot("{0}"))
	for _, gone := range []int{heartbeats, (heartbeats + 1) % 3} {
		t.Run(fmt.Sprintf("heartbeats %t", gone == heartbeats), func(t *testing.T) {
			dead := shardsOf(c, gone)
			alg := ten
			alg.Limit = 100
			a := startNode(t, clientOf(t, c.URL), alg, time.Hour, wallClock)
			b := startNode(t, clientOf(t, c.URL), alg, time.Hour, wallClock)
			well, ill := keyOf(^dead, 1), keyOf(dead, 1)
			for _, key := range []string{well, ill} {
				a.take(key, 2)
				a.knows(key, 2, 0)
				b.knows(key, 0, 2)
			}
			redistest.Eventually(t, "nothing is lost", func() bool { return a.source.UnavailableShards() == 0 })
			c.Nodes[gone].Kill()
			redistest.Eventually(t, "the node notices, of these shards, and tells", func() bool { return a.source.UnavailableShards() == dead && !a.rep.Status().Up })
			fresh := keyOf(^dead, 2) // is synced early
			a.take(fresh, 3)
			a.knows(fresh, 3, 0)
			b.knows(fresh, 0, 3)
			a.take(keyOf(dead, 3), 1)
			a.take(ill, 1)
			a.configure(time.Hour) // a cycle at once
			redistest.Eventually(t, "the cycle has failed", func() bool { return a.source.current.Load().missed.Load() != 0 })
			redistest.Eventually(t, "no other shard is lost for it", func() bool { return a.source.UnavailableShards() == dead })
			cycles := a.source.Status().Cycles
			c.Nodes[gone].Restart()
			c.Wait()
			redistest.Eventually(t, "all is well again", func() bool { return a.source.UnavailableShards() == 0 && a.rep.Status().Up })
			redistest.Eventually(t, "a cycle is completed, an hour early", func() bool { return a.source.Status().Cycles > cycles })
		})
	}
}

// A master without memory answers the heartbeat, and takes no counts. The outage of its shards goes
// on while the others sync early.
func TestAMasterWithoutMemoryStaysReported(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	full := (c.Owner(c.Slot("{0}")) + 1) % 3
	alg := ten
	alg.Limit = 100
	a := startNode(t, clientOf(t, c.URL), alg, time.Hour, wallClock)
	a.take(keyOf(^shardsOf(c, full), 1), 1)
	redistest.Eventually(t, "all is well", func() bool { return a.rep.Status().Up })
	c.Nodes[full].Do("CONFIG", "SET", "maxmemory", "1")
	a.take(keyOf(shardsOf(c, full), 2), 1)
	redistest.Eventually(t, "the node notices", func() bool { return !a.rep.Status().Up })
	for i := range 10 {
		key := keyOf(^shardsOf(c, full), 3+i)
		a.take(key, 1)
		a.knows(key, 1, 0)
		if a.rep.Status().Up {
			t.Fatalf("after %d early syncs of other shards the status reports that all works", i+1)
		}
	}
	c.Nodes[full].Do("CONFIG", "SET", "maxmemory", "0")
	a.configure(time.Hour) // a cycle at once
	redistest.Eventually(t, "all is well again", func() bool { return a.rep.Status().Up })
}

// A table that ends while a part of the Cluster is gone sends the rest of its counts, and logs of
// the others how many they are.
func TestDetachSendsToTheRestOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	dead := shardsOf(c, 2)
	a := startNode(t, clientOf(t, c.URL), ten, time.Hour, wallClock)
	b := startNode(t, clientOf(t, c.URL), ten, 50*time.Millisecond, wallClock)
	var well []string
	ill := 0
	for i := range 20 {
		key := fmt.Sprint("k", i)
		a.take(key, 1)
		a.knows(key, 1, 0)
		if HasShardOf(dead, keys.IDOf([]byte(key))) {
			ill++
		} else {
			well = append(well, key)
		}
	}
	c.Nodes[2].Kill()
	redistest.Eventually(t, "the node notices", func() bool { return a.source.UnavailableShards() == dead })
	a.table.MakeOutgoing()
	for i := range 20 {
		a.take(fmt.Sprint("k", i), 1)
	}
	a.source.Detach()
	for _, key := range well {
		b.knows(key, 0, 2)
	}
	lines := a.notSent()
	if len(lines) != 1 || lines[0].ContextMap()["keys"] != int64(ill) || lines[0].ContextMap()["requests"] != int64(ill) {
		t.Errorf("logged %v, want that one request of each of %d keys could not be sent", lines, ill)
	}
}
