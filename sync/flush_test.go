package ratesync

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// slowWire is a wire whose calls take a time of their own more.
type slowWire struct {
	*wire
	trip  time.Duration
	calls func()
}

// Process is how counts go.
//
// bubble: of each test.
func (w *slowWire) Process(ctx context.Context, cmd redis.Cmder) error {
	w.calls()
	time.Sleep(w.trip)
	return w.wire.Process(ctx, cmd)
}

// tables are many tables at one replicator, each with an hour until its next sync.
type tables struct {
	*wire
	rep     *Replicator
	logs    *observer.ObservedLogs
	sources []*Source
	tables  []*table.Table[algorithms.WindowState]
	calls   int
}

const tripTime = 200 * time.Millisecond

func manyTables(t *testing.T, n int) *tables {
	store := newLuaStore(t)
	m := &tables{wire: &wire{net: &network{random: rand.New(rand.NewPCG(1, 1))}, store: store}}
	core, logs := observer.New(zap.InfoLevel)
	m.logs = logs
	m.rep = NewReplicator(&slowWire{m.wire, tripTime, m.called}, "test", 10*time.Second, wallClock, zap.New(core))
	for i := range n {
		tb := tableOf[algorithms.WindowState](ten, 1000)
		source := NewSource(tb, Spec{Zone: fmt.Sprint("z", i), Kind: 'f', Window: ten.Window, SubWindows: 1})
		tb.Configure(table.SyncConfig{Params: ten, Rate: time.Hour, Waker: source.Waker}, 1000)
		m.rep.Attach(source, time.Hour)
		m.sources, m.tables = append(m.sources, source), append(m.tables, tb)
	}
	time.Sleep(time.Minute) // the first cycles are over
	return m
}

func (m *tables) called() {
	m.net.mu.Lock()
	defer m.net.mu.Unlock()
	m.calls++
}

func (m *tables) take(i int) {
	m.tables[i].Take(ten.Compile(), keys.KeyOf([]byte("k")), []byte("k"), wallClock(), 1, 0)
}

func (m *tables) unsent() (sum int64) {
	for _, tb := range m.tables {
		_, n, _ := tb.Unsent(wallClock())
		sum += n
	}
	return sum
}

// Tables that leave one after the other have their last counts sent side by side, each in one
// call, and one that stays has its cycles as before.
func TestTablesThatLeaveAreFlushedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := manyTables(t, 60)
		for i := range m.tables {
			m.take(i)
		}
		began, calls := time.Now(), m.calls
		for _, s := range m.sources[1:] {
			s.Detach()
		}
		if took := time.Since(began); took > 3*tripTime {
			t.Errorf("59 tables took %v to leave, at a round trip of %v", took, tripTime)
		}
		if n := m.unsent(); n != 0 {
			t.Errorf("%d requests are unsent", n)
		}
		if n := m.calls - calls; n != 60 {
			t.Errorf("%d calls for 60 tables with one key each", n)
		}
		cycles := m.sources[0].Status().Cycles
		m.take(0)
		time.Sleep(2 * time.Hour)
		if now := m.sources[0].Status().Cycles; now < cycles+1 || now > cycles+2 || m.unsent() != 0 {
			t.Errorf("the table that stayed had %d cycles in two hours, and has %d unsent", now-cycles, m.unsent())
		}
		m.sources[0].Detach()
		m.rep.Close()
	})
}

// What is counted after a flush is sent when its table leaves, however soon after.
func TestCountsAfterAFlushAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := manyTables(t, 4)
		for i := range m.tables {
			m.take(i)
		}
		for i, s := range m.sources {
			if i == 2 {
				m.take(2)
				m.take(3)
			}
			s.Detach()
		}
		m.rep.Close()
		if n := m.unsent(); n != 0 {
			t.Errorf("%d requests are unsent", n)
		}
	})
}

// What is refunded, and that a unit is settled, is sent when its table leaves, also where that is
// all that there is to send.
func TestRefundsBeforeTheEndAreSent(t *testing.T) {
	for name, settled := range map[string]bool{"refunded": false, "settled": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { refundBeforeTheEnd(t, settled) })
		})
	}
}

func refundBeforeTheEnd(t *testing.T, settled bool) {
	m := manyTables(t, 1)
	tab, source, p := m.tables[0], m.sources[0], ten
	p.Reserves = true
	tab.Configure(table.SyncConfig{Params: p, Rate: time.Hour, Waker: source.Waker}, 1000)
	limit, key := p.Compile(), keys.KeyOf([]byte("k"))
	held := tab.Hold(limit, key, tab.Take(limit, key, []byte("k"), wallClock(), 1, table.Reserve|algorithms.WantReset))
	m.rep.Attach(source, time.Hour) // which syncs at once
	time.Sleep(time.Second)
	name := NewKeyspace("test").Cells(source.spec).Of(keys.IDOf([]byte("k")))
	stored := func() (spent, open string) {
		sum := strings.Fields(m.store.Hash(name)["sum"]) // total stamp end epoch open
		return sum[0], sum[4]
	}
	if spent, open := stored(); spent != "1" || open != "1" {
		t.Fatalf("redis has %s spent, %s open of a reserved unit", spent, open)
	}
	want, spent := "0", int64(0)
	if settled {
		want, spent = "1", 1
	}
	tab.Settle(key, held, wallClock(), spent)
	source.Detach()
	m.rep.Close()
	if spent, open := stored(); spent != want || open != "0" {
		t.Errorf("after the end redis has %s spent, %s open, want %s and none", spent, open, want)
	}
}

// A node that comes when another has ended counts what that has spent, in each algorithm, whatever
// of it was refunded last.
func TestANodeThatComesKnowsTheLastRefunds(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow} {
		t.Run(kind.String(), knowsTheLastRefunds[algorithms.WindowState](kind))
	}
	t.Run(algorithms.SlidingLog.String(), knowsTheLastRefunds[algorithms.LogState](algorithms.SlidingLog))
	for _, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA, algorithms.LeakyBucket} {
		t.Run(kind.String(), knowsTheLastRefunds[algorithms.BucketState](kind))
	}
}

func knowsTheLastRefunds[S any](kind algorithms.Kind) func(t *testing.T) {
	p := algorithms.Params{Kind: kind, Limit: 10, Window: 1000 * time.Hour, Burst: 10, Queue: 9, Reserves: true}
	limit, key := p.Compile(), keys.KeyOf([]byte("k"))
	reserve := func(tb *table.Table[S], n int64) (table.Reserved, bool) {
		d := tb.Take(limit, key, []byte("k"), wallClock(), n, table.Reserve|algorithms.WantReset)
		return tb.Hold(limit, key, d), d.Allowed
	}
	return func(t *testing.T) {
		r := redistest.Start(t)
		nodes := make([]*table.Table[S], 3)
		sources, reps := make([]*Source, 3), make([]*Replicator, 3)
		start := func(i int) {
			nodes[i] = tableOf[S](p, 1)
			sources[i] = NewSource(nodes[i], SpecOf("z", p))
			reps[i] = NewReplicator(clientOf(t, r.URL), "test", patience, wallClock, zap.NewNop())
			nodes[i].Configure(table.SyncConfig{Params: p, Rate: time.Hour, Waker: sources[i].Waker}, 1)
			reps[i].Attach(sources[i], time.Hour) // which syncs at once
			redistest.Eventually(t, "a node is synced", func() bool { return sources[i].Status().Cycles > 0 })
		}
		start(0)
		start(1)
		kept, _ := reserve(nodes[0], 6)
		back, _ := reserve(nodes[0], 4)
		if _, ok := reserve(nodes[0], 1); ok {
			t.Fatal("eleven of ten are admitted")
		}
		reps[0].Attach(sources[0], time.Hour)
		redistest.Eventually(t, "all is sent", func() bool { return nodes[0].Totals(wallClock()).Unsent == 0 })
		nodes[0].Settle(key, kept, wallClock(), 6)
		nodes[0].Settle(key, back, wallClock(), 0)
		sources[0].Detach()
		reps[0].Close()
		start(2)
		for _, i := range []int{2, 1} {
			reps[i].Attach(sources[i], time.Hour)
			if _, ok := reserve(nodes[i], 0); !ok {
				t.Fatal("a request that costs nothing is denied")
			}
			cycles := sources[i].Status().Cycles
			reps[i].Attach(sources[i], time.Hour)
			redistest.Eventually(t, "the node has heard", func() bool { return sources[i].Status().Cycles > cycles })
		}
		_, more := reserve(nodes[2], 5)
		if _, ok := reserve(nodes[2], 4); !ok || more {
			t.Errorf("4 of 10 were refunded before the end: 4 are admitted %t, 5 %t", ok, more)
		}
		for _, i := range []int{1, 2} {
			sources[i].Detach()
			reps[i].Close()
		}
	}
}

// Refunds that can't be sent at the end are logged, also where they are all that is left.
func TestRefundsThatCouldNotBeSentAreTold(t *testing.T) {
	t.Parallel()
	for more, want := range []string{"go on counting these requests", "never see these requests"} {
		r := redistest.Start(t)
		a := startNode(t, clientOf(t, r.URL), ten, 20*time.Millisecond, wallClock)
		key := keys.KeyOf([]byte("k"))
		taken := a.table.Take(a.alg.Compile(), key, []byte("k"), a.now(), 3, 0)
		a.knows("k", 3, 0)
		redistest.Eventually(t, "nothing is left to send", func() bool { return a.table.Totals(a.now()).Unsent == 0 })
		r.Kill()
		a.table.Refund(a.alg.Compile(), key, taken, 3)
		a.take("another", more)
		a.source.Detach()
		lines := a.notSent()
		if len(lines) != 1 {
			t.Fatalf("logged %v, want one line", lines)
		}
		got := lines[0].ContextMap()
		if got["keys"] != int64(more) || got["requests"] != int64(more) || got["refunded_keys"] != int64(1) || !strings.Contains(lines[0].Message, want) {
			t.Errorf("logged %q %v, want %d requests and the refunds of one key", lines[0].Message, got, more)
		}
	}
}

// A table without anything unsent leaves without a call.
func TestATableWithNothingUnsentLeavesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := manyTables(t, 2)
		m.take(0)
		began := time.Now()
		m.sources[1].Detach()
		if took := time.Since(began); took != 0 || m.calls != 0 {
			t.Errorf("it took %v and %d calls", took, m.calls)
		}
		m.sources[0].Detach()
		m.rep.Close()
	})
}

// A server that falls silent holds the end of all tables up for two seconds, and what could not
// be sent is logged for each of them.
func TestASilentServerHoldsUpTheEndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := manyTables(t, 60)
		for i := range m.tables {
			m.take(i)
		}
		m.net.become(&m.net.lost, 1)
		began := time.Now()
		for _, s := range m.sources {
			s.Detach()
		}
		m.rep.Close()
		if took := time.Since(began); took > flushTime+closeLeast {
			t.Errorf("it took %v until 60 tables had left", took)
		}
		if n := m.logs.FilterMessageSnippet("the last counts").Len(); n != 60 {
			t.Errorf("%d lines name 60 zones whose counts were not sent", n)
		}
	})
}

// A flush that failed is not taken for the state of a server that is back since.
func TestAFlushAfterAFailedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := manyTables(t, 2)
		m.take(0)
		m.take(1)
		m.net.become(&m.net.lost, 1)
		m.sources[0].Detach()
		m.net.heal()
		time.Sleep(5 * time.Second)
		m.sources[1].Detach()
		m.rep.Close()
		if _, n, _ := m.tables[1].Unsent(wallClock()); n != 0 {
			t.Errorf("%d requests of the second table are unsent", n)
		}
	})
}
