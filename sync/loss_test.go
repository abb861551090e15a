package ratesync

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// anEpoch is a limit that is far away, in a window that doesn't end.
var anEpoch = algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1_000_000, Window: 1000 * time.Hour}

// losers are some nodes with many keys each, around a store that forgets.
type losers struct {
	t     *testing.T
	store *luaStore
	alg   algorithms.Params
	rate  time.Duration
	nodes []lone[algorithms.WindowState]
	keys  int
}

func newLosers(t *testing.T, keys int) *losers {
	x := &losers{t: t, store: newLuaStore(t), keys: keys, rate: time.Second, alg: anEpoch, nodes: make([]lone[algorithms.WindowState], 3)}
	net := &network{random: rand.New(rand.NewPCG(1, 1))}
	for i := range x.nodes {
		x.nodes[i] = newLone[algorithms.WindowState](i, &wire{net: net, store: x.store}, x.alg, x.rate)
	}
	for range 3 { // the first two syncs of a key come early
		for i := range x.nodes {
			for key := range keys {
				x.count(i, key)
			}
		}
		time.Sleep(5 * x.rate)
	}
	x.holds("in the beginning", 9*int64(keys))
	return x
}

func (x *losers) count(node, key int) {
	raw := rawKey(key)
	x.nodes[node].Take(x.alg.Compile(), keys.KeyOf(raw), raw, wallClock(), 1, 0)
}

func rawKey(key int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(key)) }

// sent is how many messages were answered.
func (x *losers) sent() (n int64) {
	for i := range x.nodes {
		n += x.nodes[i].Replicator.Status().Keys
	}
	return n
}

// stored is what the store has of all keys.
func (x *losers) stored() (sum int64) {
	for _, hash := range x.store.Hashes() {
		sum += first(hash["sum"])
	}
	return sum
}

func (x *losers) holds(when string, want int64) {
	x.t.Helper()
	if got := x.stored(); got != want {
		x.t.Errorf("%s the store has %d, want %d", when, got, want)
	}
}

func (x *losers) close() {
	for _, n := range x.nodes {
		n.end()
	}
}

// busy has each node count a key of its own in every interval for a while, so that a loss is found
// by a key before it is by a heartbeat. It returns how many messages there were.
//
// bubble: of each test.
func (x *losers) busy(on bool, d time.Duration) int64 {
	before := x.sent()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(x.rate / 10) {
		for i := range x.nodes {
			if on {
				x.count(i, i)
			}
		}
	}
	return x.sent() - before
}

// After a store has forgotten all, a node sends each key again and asks about it once more: what it
// sends again is no new loss, whether keys find the loss or the heartbeat does.
func TestALossIsSentAgainOnce(t *testing.T) {
	for name, busy := range map[string]bool{"found by a heartbeat": false, "found by keys": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const keys, during = 300, 2 * ResendInterval
				x := newLosers(t, keys)
				defer x.close()
				usual := x.busy(busy, during)
				before := x.stored()
				x.store.forget(0, true)
				extra := x.busy(busy, during) - usual
				if got := float64(extra) / float64(3*keys); got > 2.2 {
					t.Errorf("%.2f messages a key and node, want 2.2 at most", got)
				}
				if !busy {
					x.holds("after the loss", before)
				}
			})
		})
	}
}

// A late copy of the only heartbeat that was answered, which comes when the store has forgotten,
// hides that from nobody.
func TestALateHeartbeatHidesNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &losers{t: t, store: newLuaStore(t), keys: 3, rate: 100 * time.Millisecond, alg: anEpoch}
		w := &wire{net: &network{random: rand.New(rand.NewPCG(1, 1))}, store: x.store}
		x.nodes = append(x.nodes, newLone[algorithms.WindowState](0, w, x.alg, x.rate))
		defer x.close()
		for key := range x.keys {
			x.count(0, key)
		}
		time.Sleep(heartbeatInterval / 2)
		x.holds("in the beginning", 3)
		x.store.forget(0, true)
		r := x.nodes[0].Replicator
		x.store.run(heartbeatScript.Hash(), r.heartbeatKeys(), []any{r.node, 1, Lease.Milliseconds(), -1, "", "", "v1 host", 0})
		time.Sleep(2 * ResendInterval)
		x.holds("after the loss", 3)
	})
}

// What syncs had confirmed before the first heartbeat was answered, and the store has forgotten, is
// sent again when one is.
func TestALossBeforeTheFirstHeartbeatIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &losers{t: t, store: newLuaStore(t), keys: 3, alg: anEpoch}
		w := &unheard{&wire{net: &network{random: rand.New(rand.NewPCG(1, 1))}, store: x.store}, time.Now().Add(4 * time.Second)}
		x.nodes = append(x.nodes, newLone[algorithms.WindowState](0, w, x.alg, time.Second))
		defer x.close()
		for key := range x.keys {
			x.count(0, key)
		}
		time.Sleep(3 * time.Second)
		x.holds("before a heartbeat is answered", 3)
		x.store.forget(0, true)
		time.Sleep(2 * ResendInterval)
		x.holds("after the loss", 3)
	})
}

// An unheard wire has no heartbeat answered until an instant.
type unheard struct {
	*wire
	until time.Time
}

// EvalSha is how heartbeats go.
//
// bubble: of its test.
func (u *unheard) EvalSha(ctx context.Context, hash string, keys []string, args ...any) *redis.Cmd {
	if hash == heartbeatScript.Hash() && time.Now().Before(u.until) {
		<-ctx.Done()
		return redis.NewCmdResult(nil, ctx.Err())
	}
	return u.wire.EvalSha(ctx, hash, keys, args...)
}

// A store that forgets once more while all is sent again is found to, and all is sent once more.
func TestASecondLossDuringAResendIsFound(t *testing.T) {
	for _, share := range []int64{0, 10, 50, 80} {
		synctest.Test(t, func(t *testing.T) {
			x := newLosers(t, 300)
			defer x.close()
			all := x.stored()
			x.store.forget(0, true)
			for x.stored() <= all*share/100 {
				time.Sleep(time.Millisecond / 10)
			}
			if x.stored() == all {
				t.Errorf("all was sent again before the store could forget once more at %d %%", share)
			}
			x.store.forget(0, true)
			time.Sleep(3 * ResendInterval)
			x.holds("after two losses", all)
		})
	}
}

// What has no request is sent again by each node at another time, as far apart as it takes for all
// nodes, of which there are many. What has a request goes with the next sync, and the rest of a
// node that ends goes then.
func TestWhatWasLostIsSentAgainSpreadOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys, others, rate = 300, 1000, 100 * time.Millisecond
		x := &losers{t: t, store: newLuaStore(t), keys: keys, rate: rate, alg: anEpoch, nodes: make([]lone[algorithms.WindowState], 12)}
		defer x.close()
		net := &network{random: rand.New(rand.NewPCG(1, 2))}
		for i := range x.nodes {
			x.nodes[i] = newLone[algorithms.WindowState](i, &wire{net: net, store: x.store}, x.alg, rate)
			for key := range keys {
				x.count(i, key)
			}
		}
		time.Sleep(3 * time.Second)
		x.store.join(others)
		time.Sleep(time.Second) // every node knows of them
		if got := x.have(1); got != len(x.nodes) {
			t.Fatalf("before the loss the store has a key of %d nodes, want %d", got, len(x.nodes))
		}
		x.store.forget(0, true)
		time.Sleep(time.Second + rate) // every node knows of that
		for i := range x.nodes {
			x.count(i, 0)
		}
		time.Sleep(2 * rate)
		if got := x.have(0); got != len(x.nodes) {
			t.Errorf("a key with requests is back of %d nodes after two intervals, want all %d", got, len(x.nodes))
		}
		if x.have(1) == len(x.nodes) {
			t.Errorf("all nodes have sent the rest at once, want that spread over %v", cycle.ResendTime(others, keys))
		}
		for _, n := range x.nodes {
			if total, _ := x.store.field(x.name(1), n.Node()); total == 0 {
				n.Detach()
				if total, _ := x.store.field(x.name(1), n.Node()); total == 0 {
					t.Error("a node has ended and not sent the rest")
				}
				break
			}
		}
		time.Sleep(cycle.ResendTime(2*others, keys))
		x.holds("in the end", int64(len(x.nodes)*(keys+1)))
	})
}

// have is how many nodes' totals of a key the store has.
func (x *losers) have(key int) (n int) {
	for i := range x.nodes {
		if total, _ := x.store.field(x.name(key), x.nodes[i].Node()); total > 0 {
			n++
		}
	}
	return n
}

// name is that of a key's hash.
func (x *losers) name(key int) string {
	spec := x.nodes[0].spec
	epoch := wallClock() / int64(spec.Window)
	return NewKeyspace("test").Cells(spec).Of(keys.IDOf(rawKey(key))) + "#" + itoa(epoch)
}

// join has the store know of other nodes.
func (s *luaStore) join(n int) {
	for i := range n {
		s.Do("HSET", NewKeyspace("test").Nodes(0), fmt.Sprint("node", i), fmt.Sprint("1 ", s.time().Add(Lease).UnixMilli()))
	}
}
