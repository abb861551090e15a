package ratesync

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// rnode is one node with one table of windows.
type rnode struct {
	t      *testing.T
	table  *table.Table[algorithms.WindowState]
	alg    algorithms.Params
	source *TableSyncer
	rep    *Replicator
	logs   *observer.ObservedLogs
	now    func() int64
}

// wallClock is a clock of nodes.
//
// no clock: nodes go by it, and their windows don't end.
func wallClock() int64 { return time.Now().UnixNano() }

func skewed(by time.Duration) func() int64 {
	return func() int64 { return wallClock() + int64(by) }
}

// ten are in a window that doesn't end.
var ten = algorithms.Params{Kind: algorithms.FixedWindow, Limit: 10, Window: 1000 * time.Hour}

// clientOf is a client by a URL as users write it, which is patient where that has no timeout.
func clientOf(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	s, err := redisconn.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	s.Timeout = cmp.Or(s.Timeout, patience)
	client, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func startNode(t *testing.T, client redis.UniversalClient, alg algorithms.Params, rate time.Duration, now func() int64) *rnode {
	t.Helper()
	return startNodeWithin(t, client, patience, alg, rate, now)
}

// startNodeWithin is startNode with a timeout.
func startNodeWithin(t *testing.T, client redis.UniversalClient, timeout time.Duration, alg algorithms.Params, rate time.Duration, now func() int64) *rnode {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	n := &rnode{t: t, table: tableOf[algorithms.WindowState](alg, 10_000), alg: alg, now: now, logs: logs}
	n.source = NewTableSyncer(n.table, Spec{Zone: "z", Kind: 'f', Window: alg.Window, SubWindows: 1, History: alg.Compile().History})
	n.rep = NewReplicator(client, "test", timeout, now, zap.New(core))
	n.configure(rate)
	t.Cleanup(func() { n.source.Detach(); n.rep.Close() })
	return n
}

func (n *rnode) configure(rate time.Duration) {
	n.table.Configure(table.SyncConfig{Params: n.alg, Interval: rate, Early: true, Waker: n.source.Waker}, 10_000)
	n.rep.Attach(n.source, rate)
}

func (n *rnode) take(key string, count int) (admitted int) {
	for range count {
		if n.table.Take(n.alg.Compile(), keys.KeyOf([]byte(key)), []byte(key), n.now(), 1, 0).Allowed {
			admitted++
		}
	}
	return admitted
}

// knows waits until a node's view of one key is own and remote.
func (n *rnode) knows(key string, own, remote int64) {
	n.t.Helper()
	redistest.Eventually(n.t, fmt.Sprintf("node knows %d own and %d remote of %q", own, remote, key), func() (ok bool) {
		n.touch(key)
		n.table.With(keys.KeyOf([]byte(key)), func(s *algorithms.WindowState) {
			c := ledgerOf(n.alg, s).Cur
			ok = c.Own == own && c.Remote == remote && c.Acked == own
		})
		return ok
	})
}

// touch makes a request that spends nothing.
func (n *rnode) touch(key string) {
	n.table.Take(n.alg.Compile(), keys.KeyOf([]byte(key)), []byte(key), n.now(), 0, 0)
}

// A cycle counts when all that was due was sent and answered; an early sync is none.
func TestStatusCountsCompletedCycles(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	turns := func(n *rnode) int64 { return n.source.Status().Cycles }
	slow := startNode(t, clientOf(t, r.URL), ten, time.Hour, wallClock)
	before := slow.now()
	redistest.Eventually(t, "the first cycle is over, which is at once", func() bool { return turns(slow) == 1 && !slow.source.Status().Synced.IsZero() })
	if synced := slow.source.Status().Synced.UnixNano(); synced < before-int64(time.Minute) || synced > slow.now() {
		t.Errorf("the first cycle was over at %d, want between %d and %d", synced, before, slow.now())
	}
	slow.take("k", 9)
	slow.knows("k", 9, 0)
	if got := turns(slow); got != 1 {
		t.Errorf("%d cycles after an early sync, an hour before the second one", got)
	}

	fast := startNode(t, clientOf(t, r.URL), ten, 20*time.Millisecond, wallClock)
	redistest.Eventually(t, "cycles go on with nothing to send", func() bool { return turns(fast) > 3 })
	r.Kill()
	fast.take("k", 1)
	redistest.Eventually(t, "a cycle has failed", func() bool { return fast.rep.Status().Failing["z 1000h0m0s"] != "" })
	failed, completed, synced := fast.rep.Status().Failures, turns(fast), fast.source.Status().Synced
	redistest.Eventually(t, "three more have failed", func() bool { return fast.rep.Status().Failures >= failed+3 })
	if got := fast.source.Status(); got.Cycles != completed || !got.Synced.Equal(synced) {
		t.Errorf("%+v while cycles fail, want %d cycles and %v", got, completed, synced)
	}
	r.Restart()
	redistest.Eventually(t, "a cycle is completed again", func() bool { return turns(fast) > completed })
	if got := fast.source.Status(); !got.Synced.After(synced) {
		t.Errorf("a cycle was completed at %v after the one of %v", got.Synced, synced)
	}
	redistest.Eventually(t, "what was counted meanwhile is sent", func() bool { return fast.table.Totals(fast.now()).Unsent == 0 })
	fast.source.Detach()
	if got := fast.source.Status(); got != nil {
		t.Errorf("%+v of a table that is not attached, want nil", got)
	}
}

func TestDetachSendsTheLastCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wire := newWire(t)
		a := startNode(t, wire, ten, time.Hour, wallClock)
		a.knows("k", 0, 0)
		a.take("k", 7) // not near its limit, and the next cycle is in an hour
		a.take("other", 1)
		a.source.Detach()
		b := startNode(t, wire, ten, 50*time.Millisecond, wallClock)
		b.knows("k", 0, 7)
		b.knows("other", 0, 1)
	})
}

func TestAnotherRedisTakesOver(t *testing.T) {
	t.Parallel()
	r1, r2 := redistest.Start(t), redistest.Start(t)
	a := startNode(t, clientOf(t, r1.URL), ten, 50*time.Millisecond, wallClock)
	a.take("k", 4)
	a.knows("k", 4, 0)
	rep2 := NewReplicator(clientOf(t, r2.URL), "test", patience, wallClock, zap.NewNop())
	t.Cleanup(rep2.Close)
	rep2.Attach(a.source, 50*time.Millisecond)
	t.Cleanup(a.source.Detach)
	b := startNode(t, clientOf(t, r2.URL), ten, 50*time.Millisecond, wallClock)
	b.knows("k", 0, 4)
}

// newWire is a way to a store of its own on which nothing fails.
func newWire(t *testing.T) *wire {
	store := newLuaStore(t)
	return &wire{net: &network{random: rand.New(rand.NewPCG(1, 1))}, store: store}
}

// A clock that steps while there are counts, by less than half a window: nodes that take long to
// agree again count into different windows meanwhile.
func TestSteppingClocksAgreeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(52 * time.Minute) // so that a step ahead leads over the boundary
		alg := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 1000, Window: time.Hour, SubWindows: 1}
		var step atomic.Int64
		stepping := func() int64 { return wallClock() + step.Load() }
		wire := newWire(t)
		a := startNode(t, wire, alg, 20*time.Millisecond, stepping)
		b := startNode(t, wire, alg, 20*time.Millisecond, wallClock)
		for _, by := range []time.Duration{0, 20 * time.Minute, 0, -20 * time.Minute, 0} {
			step.Store(int64(by))
			a.take("k", 1)
			time.Sleep(3 * time.Second)
			apart := stepping() + int64(a.table.Offset()) - wallClock() - int64(b.table.Offset())
			if time.Duration(apart).Abs() > time.Minute {
				t.Errorf("three seconds after a step of %v the clocks are %v apart", by, time.Duration(apart))
			}
			b.take("k", 1)
			a.take("k", 1)
			time.Sleep(time.Second)
			a.touch("k")
			b.touch("k")
			time.Sleep(time.Second)
			x, y := a.table.Totals(stepping()), b.table.Totals(wallClock())
			if x.Own+x.Remote != y.Own+y.Remote || x.Own != y.Remote || x.Unsent+y.Unsent != 0 {
				t.Errorf("after a step of %v one node counts %+v, and the other one %+v", by, x, y)
			}
		}
	})
}
