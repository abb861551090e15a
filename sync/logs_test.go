package ratesync

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// logs are nodes that count by a sliding log of ten in twenty seconds.
type logs struct {
	t     *testing.T
	alg   algorithms.Params
	store *luaStore
	net   *network
	nodes []lone[algorithms.LogState]
}

func newLogs(t *testing.T, seed uint64) *logs {
	x := &logs{t: t, alg: algorithms.Params{Kind: algorithms.SlidingLog, Limit: 10, Window: 20 * time.Second}, store: newLuaStore(t)}
	x.net = &network{random: rand.New(rand.NewPCG(seed, 4))}
	for i := range 3 {
		x.nodes = append(x.nodes, newLone[algorithms.LogState](i, &wire{net: x.net, store: x.store}, x.alg, time.Second))
	}
	return x
}

// ask asks a node for n, and reports whether they are admitted.
func (x *logs) ask(node int, n int64) bool {
	return x.nodes[node].Take(x.alg.Compile(), keys.KeyOf([]byte("k")), []byte("k"), wallClock(), n, 0).Allowed
}

func (x *logs) close() {
	for _, n := range x.nodes {
		n.end()
	}
}

// A client that stays below a log's limit is not denied by a node that hears of it late, wherever
// it comes: nine in two seconds, and again when they have left the window, which takes a sync and a
// sixteenth of it longer.
func TestALogThatHearsLateDeniesNobodyBelowItsLimit(t *testing.T) {
	for seed := range redistest.Seeds(5, 100) {
		synctest.Test(t, func(t *testing.T) {
			x := newLogs(t, seed)
			random := rand.New(rand.NewPCG(seed, 1))
			defer x.close()
			for burst := range 20 {
				node := random.IntN(3)
				for i := range 9 {
					if !x.ask(node, 1) {
						t.Fatalf("seed %d: request %d of burst %d is denied by node %d", seed, i+1, burst, node)
					}
					time.Sleep(200 * time.Millisecond)
				}
				time.Sleep(23*time.Second + time.Duration(random.Int64N(int64(10*time.Second))))
			}
		})
	}
}

// Nodes that have heard of all that was spent before admit no more than the limit in any window,
// however late they hear of it.
func TestALogThatHearsLateAdmitsNoMoreThanItsLimit(t *testing.T) {
	for seed := range redistest.Seeds(5, 100) {
		synctest.Test(t, func(t *testing.T) {
			x := newLogs(t, seed)
			random := rand.New(rand.NewPCG(seed, 2))
			defer x.close()
			var admitted []time.Time
			for range 300 {
				node := random.IntN(3)
				x.ask(node, 0) // the node asks for the key
				time.Sleep(3 * time.Second)
				for range random.IntN(8) {
					if x.ask(node, 1) {
						admitted = append(admitted, time.Now())
					}
				}
				if random.IntN(8) == 0 {
					time.Sleep(time.Duration(random.Int64N(int64(30 * time.Second))))
				}
			}
			for i := range admitted {
				if last := i + 10; last < len(admitted) && admitted[last].Sub(admitted[i]) < x.alg.Window {
					t.Fatalf("seed %d: eleven are admitted within %v", seed, admitted[last].Sub(admitted[i]))
				}
			}
		})
	}
}

// After a step of the store's clock nothing is older than its epoch in a log: of the window that
// goes on, all counts.
func TestAStepOfTheStoresClockForgetsNothingOfThisWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newLogs(t, 1)
		defer x.close()
		time.Sleep(time.Second) // a window begins with the hour
		x.ask(0, 10)
		time.Sleep(3 * time.Second)
		x.store.step(30 * time.Second)
		x.ask(1, 0)
		time.Sleep(3 * time.Second)
		if x.ask(1, 1) {
			t.Error("a node that hears of ten after a step of the store's clock admits one more")
		}
	})
}

// What others refund counts no more on a node that has heard of it late: however long its messages
// took, a refund is not older than what it refunds.
func TestALogForgetsWhatOthersRefund(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			x := newLogs(t, seed)
			defer x.close()
			// A sixteenth of the window is 1.25 s.
			time.Sleep(time.Duration(seed) * 100 * time.Millisecond)
			x.net.slow(200 * time.Millisecond)
			d := x.nodes[0].Take(x.alg.Compile(), keys.KeyOf([]byte("k")), []byte("k"), wallClock(), 9, 0)
			time.Sleep(2 * time.Second)
			x.ask(1, 0)
			time.Sleep(4 * time.Second)
			x.net.slow(0)
			x.nodes[0].Refund(x.alg.Compile(), keys.KeyOf([]byte("k")), d, 9)
			time.Sleep(3 * time.Second)
			x.ask(1, 0)
			time.Sleep(3 * time.Second)
			if !x.ask(1, 10) {
				t.Errorf("seed %d: nine of ten were refunded elsewhere, and ten are denied", seed)
			}
		})
	}
}

// What others spent while they refunded as much is not older than it is, on a node that hears of it
// late: their total has not grown.
func TestALogIsRenewedByWhatIsSpentBesideARefund(t *testing.T) {
	for _, tt := range []struct {
		name     string
		reserves bool
		again    int64
	}{{"less", false, 4}, {"as much, reserved", true, 5}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { renewedBesideARefund(t, tt.reserves, tt.again) })
		})
	}
}

func renewedBesideARefund(t *testing.T, reserves bool, again int64) {
	x := newLogs(t, 1)
	defer x.close()
	x.alg.Reserves = reserves
	for _, n := range x.nodes {
		n.Configure(table.SyncConfig{Params: x.alg, Interval: time.Second, Early: true, Waker: n.Waker}, 1000)
	}
	time.Sleep(time.Second) // a window begins with the hour
	d := x.nodes[0].Take(x.alg.Compile(), keys.KeyOf([]byte("k")), []byte("k"), wallClock(), 9, 0)
	time.Sleep(12 * time.Second)
	x.nodes[0].Refund(x.alg.Compile(), keys.KeyOf([]byte("k")), d, 9)
	if !x.ask(0, 4) || !x.ask(0, again) {
		t.Fatal("what was refunded is denied where it was")
	}
	time.Sleep(2 * time.Second)
	x.ask(1, 0)
	time.Sleep(9 * time.Second)
	if x.ask(1, 7-again) {
		t.Error("eleven are admitted within eleven seconds")
	}
}
