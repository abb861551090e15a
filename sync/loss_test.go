package ratesync

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/health"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// losers are three nodes with many keys each, around a store that forgets.
type losers struct {
	t     *testing.T
	store *luaStore
	alg   algorithms.Params
	rate  time.Duration
	nodes [3]lone
	keys  int
}

func newLosers(t *testing.T, keys int) *losers {
	x := &losers{
		t: t, store: newLuaStore(t), keys: keys, rate: time.Second,
		alg: algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1_000_000, Window: 1000 * time.Hour},
	}
	net := &network{random: rand.New(rand.NewPCG(1, 1))}
	for i := range x.nodes {
		x.nodes[i] = newLone(&wire{net: net, store: x.store}, x.alg, x.rate)
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
	raw := binary.BigEndian.AppendUint64(nil, uint64(key))
	x.nodes[node].Take(x.alg.Compile(), table.KeyOf(raw), raw, wallClock(), 1, 0)
}

// sent is how many messages were answered.
func (x *losers) sent() (n int64) {
	for i := range x.nodes {
		n += x.nodes[i].Replicator.Status().Keys
	}
	return n
}

// stored is what the store has of all keys.
func (x *losers) stored() (sum int64) {
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	for _, hash := range x.store.hashes {
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
		n.Detach()
		n.Close()
	}
	x.store.state.Close()
}

// busy has each node count a key of its own in every interval for a while, so that a loss is found
// by a key before it is by a heartbeat. It returns how many messages there were.
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
				const keys, during = 300, 2 * health.ResendRate
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
			time.Sleep(3 * health.ResendRate)
			x.holds("after two losses", all)
		})
	}
}
