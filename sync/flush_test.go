package ratesync

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// slowWire is a wire whose calls take a time of their own more.
type slowWire struct {
	*wire
	trip  time.Duration
	calls func()
}

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
		tb := tableOf[algorithms.WindowState](anHour, 1000)
		source := NewSource(tb, Spec{Zone: fmt.Sprint("z", i), Kind: 'f', Window: time.Hour, Buckets: 1})
		tb.Configure(table.SyncConfig{Params: anHour, Rate: time.Hour, Waker: source.Waker}, 1000)
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
	m.tables[i].Take(anHour.Compile(), keys.KeyOf([]byte("k")), []byte("k"), wallClock(), 1, 0)
}

func (m *tables) unsent() (sum int64) {
	for _, tb := range m.tables {
		_, n := tb.Unsent(wallClock())
		sum += n
	}
	return sum
}

// Tables that leave one after the other have their last counts sent side by side, each in one
// call, and one that stays has its cycles as before.
func TestTablesThatLeaveAreFlushedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := manyTables(t, 60)
		defer m.store.state.Close()
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
		defer m.store.state.Close()
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

// A table without anything unsent leaves without a call.
func TestATableWithNothingUnsentLeavesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := manyTables(t, 2)
		defer m.store.state.Close()
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
		defer m.store.state.Close()
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
		defer m.store.state.Close()
		m.take(0)
		m.take(1)
		m.net.become(&m.net.lost, 1)
		m.sources[0].Detach()
		m.net.heal()
		time.Sleep(5 * time.Second)
		m.sources[1].Detach()
		m.rep.Close()
		if _, n := m.tables[1].Unsent(wallClock()); n != 0 {
			t.Errorf("%d requests of the second table are unsent", n)
		}
	})
}
