package ratesync

import (
	"cmp"
	"context"
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
	source *Source
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
	n.source = NewSource(n.table, Spec{Zone: "z", Kind: 'f', Window: alg.Window, SubWindows: 1, Live: alg.Compile().History})
	n.rep = NewReplicator(client, "test", timeout, now, zap.New(core))
	n.configure(rate)
	t.Cleanup(func() { n.source.Detach(); n.rep.Close() })
	return n
}

func (n *rnode) configure(rate time.Duration) {
	n.table.Configure(table.SyncConfig{Params: n.alg, Rate: rate, Early: true, Waker: n.source.Waker}, 10_000)
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

func TestNodesLearnOfEachOther(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	a := startNode(t, clientOf(t, r.URL), ten, 50*time.Millisecond, wallClock)
	b := startNode(t, clientOf(t, r.URL), ten, 50*time.Millisecond, wallClock)
	if got := a.take("k", 6); got != 6 {
		t.Fatalf("a admitted %d of 6", got)
	}
	a.knows("k", 6, 0)
	b.knows("k", 0, 6)
	// Not all at once: b expects a to take its share as well, until it hears that a did not.
	admitted := 0
	redistest.Eventually(t, "b admits the 4 that a left", func() bool {
		admitted += b.take("k", 10)
		return admitted >= 4
	})
	if admitted += b.take("k", 10); admitted != 4 {
		t.Errorf("b admitted %d, want 4", admitted)
	}
	a.knows("k", 6, 4)
	if got := a.take("k", 5); got != 0 {
		t.Errorf("a admitted %d beyond the limit", got)
	}
	redistest.Eventually(t, "both nodes are counted", func() bool { return a.rep.Nodes() == 2 && b.rep.Nodes() == 2 })
}

func TestRedisHoldsNoClientBytesAndExpires(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	a := startNode(t, clientOf(t, r.URL), ten, 50*time.Millisecond, wallClock)
	a.take("secret{key}", 1)
	a.knows("secret{key}", 1, 0)
	redistest.Eventually(t, "the node has said that it is there", func() bool { return a.rep.Status().Nodes == 1 })
	client := r.Client()
	keys, err := client.Keys(context.Background(), "*").Result()
	if err != nil || len(keys) != 3 {
		t.Fatalf("keys in redis: %q, %v, want one counter, the nodes and how many there are", keys, err)
	}
	for _, key := range keys {
		if ttl := client.PTTL(context.Background(), key).Val(); ttl <= 0 {
			t.Errorf("%q does not expire: %v", key, ttl)
		}
		for _, field := range client.HGetAll(context.Background(), key).Val() {
			if containsAny(key+field, "secret") {
				t.Errorf("%q holds what the client sent: %q", key, field)
			}
		}
	}
}

func containsAny(s, part string) bool {
	for i := 0; i+len(part) <= len(s); i++ {
		if s[i:i+len(part)] == part {
			return true
		}
	}
	return false
}

func TestFlushAllHeals(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	a := startNode(t, clientOf(t, r.URL), ten, 50*time.Millisecond, wallClock)
	b := startNode(t, clientOf(t, r.URL), ten, 50*time.Millisecond, wallClock)
	a.take("k", 4)
	b.take("k", 3)
	a.knows("k", 4, 3)
	b.knows("k", 3, 4)
	r.Do("FLUSHALL")
	// Nobody asks for the key any more: the heartbeats notice. A node that comes now imports all.
	c := startNode(t, clientOf(t, r.URL), ten, 50*time.Millisecond, wallClock)
	redistest.Eventually(t, "both nodes have sent their counts again", func() (ok bool) {
		c.touch("k")
		c.table.With(keys.KeyOf([]byte("k")), func(s *algorithms.WindowState) { ok = ledgerOf(c.alg, s).Cur.Remote == 7 })
		return ok
	})
	a.knows("k", 4, 3)
}

func TestRedisComesAndGoes(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	url := r.URL
	r.Kill()
	a := startNode(t, clientOf(t, url), ten, 50*time.Millisecond, wallClock)
	if got := a.take("k", 4); got != 4 {
		t.Errorf("without redis: admitted %d of 4", got)
	}
	redistest.Eventually(t, "the node notices", func() bool { return a.source.Lost() != 0 })
	r.Restart()
	a.knows("k", 4, 0)
	logged := func(what string) int { return a.logs.FilterMessageSnippet(what).Len() }
	redistest.Eventually(t, "the node recovers and tells", func() bool {
		return a.source.Lost() == 0 && a.rep.Status().Up && logged("works again") > 0
	})
	if down, up := logged("sync with redis fails"), logged("works again"); down != 1 || up != 1 {
		t.Errorf("logged %d lines on the way down and %d on the way up, want 1 and 1: %v", down, up, a.logs.All())
	}
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

// Nodes whose clocks are some windows apart go by the store's, and count into the same windows.
func TestSkewedClocksAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alg := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 10, Window: 20 * time.Second}
		wire := newWire(t)
		a := startNode(t, wire, alg, 50*time.Millisecond, skewed(30*time.Second))
		b := startNode(t, wire, alg, 50*time.Millisecond, skewed(-45*time.Second))
		time.Sleep(3 * time.Second)
		if apart := time.Duration(a.now() + int64(a.table.Offset()) - b.now() - int64(b.table.Offset())); apart.Abs() > 200*time.Millisecond {
			t.Errorf("the clocks are %v apart", apart)
		}
		a.take("k", 1)
		b.touch("k")
		a.knows("k", 1, 0)
		b.knows("k", 0, 1)
	})
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

func TestClusterBatches(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	client := func() redis.UniversalClient {
		s := redisconn.Settings{Mode: "cluster", Timeout: patience}
		for _, n := range c.Nodes {
			s.Addresses = append(s.Addresses, n.Addr)
		}
		client, err := s.Client()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		return client
	}
	a := startNode(t, client(), ten, 50*time.Millisecond, wallClock)
	b := startNode(t, client(), ten, 50*time.Millisecond, wallClock)
	for i := range 300 {
		a.take(fmt.Sprint("k", i), 2)
	}
	for i := range 300 {
		b.knows(fmt.Sprint("k", i), 0, 2)
	}
}
