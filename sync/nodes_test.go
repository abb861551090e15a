package ratesync

import (
	_ "embed"
	"fmt"
	"math"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// formerHeartbeats is the script of nodes that read all leases with each heartbeat.
//
//go:embed testdata/heartbeat_before.lua
var formerHeartbeats string

var formerScript = redis.NewScript(formerHeartbeats)

func init() { sources[formerScript.Hash()] = formerHeartbeats }

// beatOf are the arguments of a node's heartbeat that asks nothing of the control record.
func beatOf(node string, seq int) []any {
	return []any{node, seq, Lease.Milliseconds(), seq - 1, "0 0", "", "v1 " + node, 0}
}

// A heartbeat costs little more among a thousand nodes than alone: a fraction of what it costs to
// read all leases.
func TestHeartbeatsOfAThousandNodes(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	client, keys := r.Client(), NewKeyspace("many")
	defer client.Close()
	names := []string{keys.Nodes(0), keys.Control(), keys.Counted()}
	const nodes = 1000
	round := func(script *redis.Script, seq int) time.Duration {
		t.Helper()
		before := cpuOf(t, client)
		for from := 0; from < nodes; from += 100 {
			pipe := client.Pipeline()
			for n := from; n < from+100; n++ {
				script.Eval(t.Context(), pipe, names, beatOf(fmt.Sprint("node", n), seq)...)
			}
			if _, err := pipe.Exec(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return cpuOf(t, client) - before
	}
	round(heartbeatScript, 1)
	former, now := time.Duration(0), time.Duration(0)
	for seq := 2; seq < 4; seq++ {
		former += round(formerScript, 2*seq)
		now += round(heartbeatScript, 2*seq+1)
	}
	t.Logf("of %d nodes a heartbeat takes %v of Redis' processor, where all leases are read %v", nodes, now/2/nodes, former/2/nodes)
	if now*5 > former {
		t.Errorf("%d heartbeats take %v of Redis' processor, where all leases are read %v; want a fifth at most", 2*nodes, now, former)
	}
}

// cpuOf is how much of the processor a server has used.
func cpuOf(t *testing.T, client *redis.Client) (used time.Duration) {
	t.Helper()
	info := client.InfoMap(t.Context(), "cpu").Val()["CPU"]
	for _, name := range []string{"used_cpu_sys", "used_cpu_user"} {
		seconds, err := strconv.ParseFloat(info[name], 64)
		if err != nil {
			t.Fatal(err)
		}
		used += time.Duration(math.Round(seconds * 1e9))
	}
	return used
}

// crowd are nodes that send heartbeats every second, one after the other, with a script each.
type crowd struct {
	*luaStore
	keys    []string
	scripts []*redis.Script
	seqs    []int
	gone    int   // so many at the end have died
	counts  []int // what each was told last
}

func newCrowd(t *testing.T, scripts ...*redis.Script) *crowd {
	k := NewKeyspace("crowd")
	return &crowd{luaStore: newLuaStore(t), keys: []string{k.Nodes(0), k.Control(), k.Counted()}, scripts: scripts, seqs: make([]int, len(scripts)), counts: make([]int, len(scripts))}
}

// beat is a heartbeat of a node.
func (c *crowd) beat(n int) {
	c.seqs[n]++
	reply := c.run(c.scripts[n].Hash(), c.keys, beatOf(fmt.Sprint("node", n), c.seqs[n])).([]any)
	c.counts[n] = int(reply[3].(int64))
}

// second lets a second pass, with a heartbeat of each node.
func (c *crowd) second() {
	for n := range c.scripts {
		if n < len(c.scripts)-c.gone {
			c.beat(n)
		}
		time.Sleep(time.Second / time.Duration(len(c.scripts)))
	}
}

// counted reports whether each node that is there was told so many.
func (c *crowd) counted(want int) bool {
	for n := range len(c.scripts) - c.gone {
		if c.counts[n] != want {
			return false
		}
	}
	return true
}

// takes is how many seconds pass until each node was told so many.
func (c *crowd) takes(want int) (seconds int) {
	for c.t.Helper(); !c.counted(want); seconds++ {
		if seconds == 60 {
			c.t.Fatalf("%v nodes are counted, want %d", c.counts, want)
		}
		c.second()
	}
	return seconds
}

// Nodes of both kinds count the same, at a start, when one dies, leaves or comes, when the server
// forgets and when its clock steps. A dead one is missed a second later than where each node reads
// all leases, at most.
func TestAllNodesCountTheSame(t *testing.T) {
	former, now := formerScript, heartbeatScript
	missed := make(map[string]int)
	for name, scripts := range map[string][]*redis.Script{
		"former": {former, former, former, former}, "now": {now, now, now, now}, "both": {former, now, former, now}, "both, and now dies": {now, former, now, former},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCrowd(t, scripts...)
			within := func(what string, most, want int) {
				t.Helper()
				if took := c.takes(want); took > most {
					t.Errorf("%s, %s: %d are counted after %d seconds, want it within %d", name, what, want, took, most)
				}
			}
			within("start", 3, 4)
			c.gone = 1
			c.second()
			missed[name] = c.takes(3)
			c.gone = 0
			within("one comes", 3, 4)
			c.run(c.scripts[3].Hash(), c.keys, []any{"node3", 0, 0})
			c.gone = 1
			within("one leaves", 2, 3)
			c.gone = 0
			within("it comes again", 3, 4)
			c.forget(0, true)
			c.second()
			within("all is forgotten", 2, 4)
			for _, step := range []time.Duration{-time.Hour, time.Hour, -5 * time.Second} {
				c.step(step)
				c.second()
				within(fmt.Sprint("a step of ", step), 2, 4)
			}
			if len(c.Hash(c.keys[0])) != 4 {
				t.Errorf("%s: leases %v, want 4", name, c.Hash(c.keys[0]))
			}
		})
	}
	for name, seconds := range missed {
		if seconds > missed["former"]+1 {
			t.Errorf("%s: a dead node is missed after %d seconds, where all leases are read after %d", name, seconds, missed["former"])
		}
	}
}
