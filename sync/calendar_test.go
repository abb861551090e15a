package ratesync

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/calendar"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// A node whose zone data has a day end later counts that time into the day before, and
// decides alone on it, as the others have forgotten that day. What they count of the new one stays,
// and later all agree. Whoever was idle decides on one request by what it knew.
func TestNodesWithOtherZoneData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSchedule[algorithms.WindowState](t, 1, ten, 500*time.Millisecond)
		// Their days begin after two minutes and after eight.
		west := func(seconds int) *algorithms.Calendar {
			return &algorithms.Calendar{Window: algorithms.Day, Zone: time.FixedZone("Atlantic/Azores", -seconds), From: 1}
		}
		for _, c := range []*algorithms.Calendar{west(120), west(120), west(480)} {
			s.by(algorithms.Params{Kind: algorithms.FixedWindow, Limit: 10, Window: algorithms.Day, Calendar: c})
			s.join()
		}
		takes := func(node, n, want int) {
			t.Helper()
			m, admitted := s.nodes[node], 0
			for range n {
				s.take(m, "k", 1)
				time.Sleep(5 * time.Second) // until all is said and heard
			}
			if admitted, m.taken = len(m.taken), nil; admitted != want {
				t.Errorf("node %d admits %d, want %d", node, admitted, want)
			}
		}
		takes(0, 2, 2)
		takes(1, 3, 3)
		takes(2, 1, 1)
		takes(0, 9, 4) // all 10 of the first day
		time.Sleep(2 * time.Minute)
		takes(0, 3, 3)
		takes(2, 3, 3) // where it is still the day before
		takes(1, 9, 7)
		time.Sleep(5 * time.Minute)
		takes(2, 3, 1) // what the others have admitted of the new day
		takes(0, 3, 1)
		takes(2, 3, 0)
		s.close()
	})
}

// Where quotas are counted in a Redis that may evict them, a node says so once.
func TestARedisThatEvicts(t *testing.T) {
	server := redistest.Start(t, redistest.Config("--maxmemory-policy", "volatile-lru"))
	p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 10, Window: algorithms.Day, Calendar: lisbon}
	core, logs := observer.New(zap.WarnLevel)
	r := NewReplicator(server.Client(), "test", 10*time.Second, wallClock, zap.New(core))
	for range 2 {
		tab := tableOf[algorithms.WindowState](p, 10)
		source := NewTableSyncer(tab, SpecOf("z", p))
		tab.Configure(table.SyncConfig{Params: p, Interval: time.Second, Waker: source.Waker}, 10)
		r.Attach(source, time.Second)
		defer source.Detach()
	}
	defer r.Close()
	redistest.Eventually(t, "a warning", func() bool {
		return logs.FilterField(zap.String("maxmemory_policy", "volatile-lru")).FilterField(zap.String("code", warning.ShortLived)).Len() == 1
	})
}

// What two nodes counted of a month stays whatever happens in its middle: to their Redis, which
// forgets or goes back to an older copy, and to them, which end without a word. Only what a node
// counted that has ended is lost, where Redis has lost it too.
func TestAMonthGoesOn(t *testing.T) {
	month := must(calendar.Of(algorithms.Month, "Europe/Berlin", 15))
	// Of a limit of 100, 40 are in the copy, and 20 more have been admitted then.
	for name, tt := range map[string]struct {
		happens func(m *monthOfNodes)
		lost    int
	}{
		"nothing":       {func(*monthOfNodes) {}, 0},
		"FLUSHALL":      {func(m *monthOfNodes) { m.store.forget(0, true) }, 0},
		"an older copy": {func(m *monthOfNodes) { m.store.restore(m.saved) }, 0},
		"all nodes end": {(*monthOfNodes).end, 0},
		"an older copy, then all nodes end": {func(m *monthOfNodes) {
			m.store.restore(m.saved)
			m.touch()
			m.end()
		}, 0},
		"all nodes end, then an older copy": {func(m *monthOfNodes) {
			m.end()
			m.store.restore(m.saved)
		}, 20},
		"all nodes end, then FLUSHALL": {func(m *monthOfNodes) {
			m.end()
			m.store.forget(0, true)
		}, 60},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				alg := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 100, Window: algorithms.Month, Calendar: month}
				m := &monthOfNodes{schedule: newSchedule[algorithms.WindowState](t, 1, alg, 500*time.Millisecond)}
				m.join()
				m.join()
				m.admit(0, 20)
				m.admit(1, 20)
				m.saved = m.store.Values()
				m.admit(0, 10)
				m.admit(1, 10)
				tt.happens(m)
				m.touch()
				for range 120 {
					m.admit(0, 1)
				}
				if m.admitted != 100+tt.lost {
					t.Errorf("%d are admitted in a month, want %d", m.admitted, 100+tt.lost)
				}
				m.close()
			})
		})
	}
}

// A monthOfNodes is two nodes, and what they have admitted of a key.
type monthOfNodes struct {
	*schedule[algorithms.WindowState]
	admitted int
}

// admit has a node decide on so many requests at once, and waits until all is said and heard.
//
// bubble: of TestAMonthGoesOn.
func (m *monthOfNodes) admit(node, n int) {
	by := m.nodes[node]
	m.take(by, "k", n)
	m.admitted += len(by.taken)
	by.taken = nil
	time.Sleep(5 * time.Second)
}

// touch has each node decide on one request, which shows it what Redis has lost, and waits until
// that is sent again.
//
// bubble: of TestAMonthGoesOn.
func (m *monthOfNodes) touch() {
	for node := range m.nodes {
		m.admit(node, 1)
	}
	time.Sleep(ResendInterval + 20*time.Second)
}

// end ends both nodes without a word, and has two others join.
func (m *monthOfNodes) end() {
	for range 2 {
		m.nodes[0].end(true)
		m.nodes = m.nodes[1:]
		m.join()
	}
}
