//go:build chaos

package cluster_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// Faults of a Redis with several servers, and of its clock.

func sentinels(t *testing.T) (*scenario, *redistest.Watched) {
	s := newScenario(t)
	w := redistest.StartSentinels(t, 3)
	return s.open("redis "+w.URL, func() []*redistest.Server { return []*redistest.Server{w.Master} }), w
}

func TestFaultSentinelFailover(t *testing.T) {
	s, w := sentinels(t)
	s.inject(fault{name: "Sentinel failover: the master is killed", reason: "redis", losesGrants: true, olderCopy: true, begin: w.Failover, end: nothing})
}

// The old master serves as one, beside the new, until it is made a replica, as sentinels do after a
// while.
func TestFaultOldMasterReturns(t *testing.T) {
	s, w := sentinels(t)
	s.inject(fault{
		name: "Sentinel: the old master returns", reason: "redis", losesGrants: true,
		begin: func() {
			w.Failover()
			w.Replica.Restart()
			often(s, 2, func(int) {})()
		},
		end: w.Rejoin,
	})
}

func shards(t *testing.T) (*scenario, *redistest.ClusterOf) {
	s := newScenario(t)
	c := redistest.StartCluster(t, 3)
	return s.open("redis "+c.URL, func() []*redistest.Server { return c.Nodes }), c
}

// Slots move while their counts are synced. Each is between two nodes for as long as requests
// are answered. A call for a strict zone has two keys, so Redis can't decide while one of them has
// moved.
func TestFaultSlotsMove(t *testing.T) {
	s, c := shards(t)
	s.inject(fault{
		name: "Cluster: slots move", mayLog: "TRYAGAIN",
		begin: func() {
			for i, slot := range s.slots(c, 6) {
				from := c.Owner(slot)
				c.Move(slot, from, (from+1+i%2)%len(c.Nodes), func() { often(s, 1, func(int) {})() })
			}
		},
		end: nothing,
	})
}

// slots returns some that have counts of zone wide.
func (s *scenario) slots(c *redistest.ClusterOf, n int) (found []int) {
	for _, r := range c.Nodes {
		for hash := range sums(s.t, r, "wide") {
			if slot := c.Slot(hash); len(found) < n && !slices.Contains(found, slot) {
				found = append(found, slot)
			}
		}
	}
	return found
}

func TestFaultShardGone(t *testing.T) {
	s, c := shards(t)
	s.inject(fault{
		name: "Cluster: one shard of three is gone, and comes back empty", reason: "redis", alsoLogs: "redis has lost counts", losesGrants: true,
		begin: c.Nodes[1].Kill,
		end: func() {
			c.Nodes[1].Restart()
			c.Wait()
		},
	})
}

// heartbeat is a reply to one: the server's time is in its first two fields.
var heartbeat = regexp.MustCompile(`^\*9\r\n\$10\r\n(\d{10})\r\n`)

// step makes Redis' clock go ahead for the nodes.
func (s *scenario) step(seconds int64) {
	for _, p := range s.proxy {
		p.Rewrite(func(piece []byte) []byte {
			at := heartbeat.FindSubmatchIndex(piece)
			if at == nil {
				return piece
			}
			now, _ := strconv.ParseInt(string(piece[at[2]:at[3]]), 10, 64)
			return fmt.Appendf(nil, "*9\r\n$10\r\n%d\r\n%s", now+seconds, piece[at[1]:])
		})
	}
}

// stepped waits until every node has taken a step of the clock.
func (s *scenario) stepped(least, most float64) {
	for _, n := range s.Nodes {
		eventually(s.t, "a node follows Redis' clock", func() error {
			status, err := n.Status(s.t.Context())
			if err != nil {
				return err
			}
			if ahead := status.Redis.Offset.Seconds(); ahead < least || ahead > most {
				return fmt.Errorf("node %d takes Redis for %.3f s ahead", n.Number, ahead)
			}
			return nil
		})
	}
}

func steps(t *testing.T, name string, seconds int64) {
	s := simple(t)
	s.keeper.step = 31 * time.Second
	s.inject(fault{
		// Until all have heard of it, nodes count in different windows: each can admit the limit
		// once more, there and back.
		name: name, extraLimits: 2 * (nodeCount - 1),
		begin: func() {
			s.step(seconds)
			s.stepped(float64(seconds)-5, float64(seconds)+5)
		},
		end: func() {
			s.step(0)
			s.stepped(-5, 5)
		},
	})
}

func TestFaultClockStepsAhead(t *testing.T) { steps(t, "Redis' clock steps 31 s ahead, and back", 31) }
func TestFaultClockStepsBack(t *testing.T)  { steps(t, "Redis' clock steps 31 s back, and ahead", -31) }
