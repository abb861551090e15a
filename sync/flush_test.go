package ratesync

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// tables are many tables at one replicator, each with an hour until its next sync.
type tables struct {
	*wire
	rep     *Replicator
	logs    *observer.ObservedLogs
	sources []*TableSyncer
	tables  []*table.Table[algorithms.WindowState]
}

const tripTime = 200 * time.Millisecond

func manyTables(t *testing.T, n int) *tables {
	m := &tables{wire: newWire(t)}
	m.net.slow(tripTime / 2)
	core, logs := observer.New(zap.InfoLevel)
	m.logs = logs
	m.rep = NewReplicator(m.wire, "test", 10*time.Second, wallClock, zap.New(core))
	for i := range n {
		tb := tableOf[algorithms.WindowState](ten, 1000)
		source := NewTableSyncer(tb, Spec{Zone: fmt.Sprint("z", i), Kind: 'f', Window: ten.Window, SubWindows: 1})
		tb.Configure(table.SyncConfig{Params: ten, Interval: time.Hour, Waker: source.Waker}, 1000)
		m.rep.Attach(source, time.Hour)
		m.sources, m.tables = append(m.sources, source), append(m.tables, tb)
	}
	time.Sleep(time.Minute) // the first cycles are over
	return m
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
		began, calls := time.Now(), m.rep.Status().Syncs
		for _, s := range m.sources[1:] {
			s.Detach()
		}
		if took := time.Since(began); took > 3*tripTime {
			t.Errorf("59 tables took %v to leave, at a round trip of %v", took, tripTime)
		}
		if n := m.unsent(); n != 0 {
			t.Errorf("%d requests are unsent", n)
		}
		if n := m.rep.Status().Syncs - calls; n != 60 {
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

// What is counted or settled while its table leaves is sent as well, and waits for nothing.
func TestCountsDuringTheLastSyncAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := manyTables(t, 1)
		m.take(0)
		go m.sources[0].Detach()
		time.Sleep(tripTime / 2)
		m.take(0)
		m.sources[0].PushLate() // would block the bubble if it waited for a lock
		time.Sleep(time.Minute)
		if n := m.unsent(); n != 0 {
			t.Errorf("%d requests are unsent", n)
		}
		m.rep.Close()
	})
}

// A call for what comes after the last sync has a timeout of its own, and ends where nobody
// answers.
func TestALateCallEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := manyTables(t, 1)
		m.take(0)
		m.sources[0].Detach()
		m.net.become(&m.net.lost, 1)
		m.take(0)
		m.sources[0].PushLate() // would never end
		time.Sleep(time.Minute)
		m.net.heal()
		m.sources[0].PushLate()
		time.Sleep(time.Minute)
		if n := m.unsent(); n != 0 {
			t.Errorf("%d requests are unsent", n)
		}
		m.rep.Close()
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
	tab.Configure(table.SyncConfig{Params: p, Interval: time.Hour, Waker: source.Waker}, 1000)
	limit, key := p.Compile(), keys.KeyOf([]byte("k"))
	held := tab.ReservationOf(limit, key, tab.Take(limit, key, []byte("k"), wallClock(), 1, table.Reserve|algorithms.WantReset))
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
		if took, calls := time.Since(began), m.rep.Status().Syncs; took != 0 || calls != 0 {
			t.Errorf("it took %v and %d calls", took, calls)
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
