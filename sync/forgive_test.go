package ratesync

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A response of one node that forgives gives all of the limit once, in all nodes together, as soon
// as they have synced, whatever happens around it.
func TestAForgivingGivesAllOfTheLimitOnce(t *testing.T) {
	t.Parallel()
	eachReset(t, true)
}

// forgive has the first node forgive the key, and the others hear of it with their next request.
func (w *resetWorld[S]) forgive() {
	forgives := func() { w.nodes[0].table.ForgiveKey(keys.KeyOf([]byte(resetKey)), wallClock(), wallClock()) }
	forgives()
	if w.scenario == "with requests meanwhile" || w.scenario == "with a node that is late" {
		w.take(w.nodes[0], resetKey, 3)
	}
	for range 3 { // an answer may be lost, and one of before may be late
		for i := range w.nodes {
			w.admitted(i, 0)
		}
		w.rest()
	}
	if w.scenario == "before a failover" || w.scenario == "before FLUSHALL" {
		return // what the store forgets is said again
	}
	for i, m := range w.nodes {
		if own := m.table.Totals(wallClock()); own.Own+own.Remote > 6 {
			w.t.Errorf("node %d still counts %+v", i, own)
		}
	}
}

// A pair of nodes counts one key by one store.
type forgivers struct {
	*schedule[algorithms.WindowState]
	key keys.Key
}

// bubble: of the test.
func newForgivers(t *testing.T, nodes int, window time.Duration) *forgivers {
	alg := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 40, Window: window}
	s := newSchedule[algorithms.WindowState](t, 1, alg, time.Second, resetKey)
	for range nodes {
		s.join()
	}
	time.Sleep(time.Minute)
	return &forgivers{s, keys.KeyOf([]byte(resetKey))}
}

func (f *forgivers) forgive(node int) {
	f.nodes[node].table.ForgiveKey(f.key, wallClock(), wallClock())
}

// hear has all nodes ask what the others have spent.
//
// bubble: of the test.
func (f *forgivers) hear() {
	for range 2 {
		for _, m := range f.nodes {
			m.table.Take(m.alg.Compile(), f.key, []byte(resetKey), wallClock(), 0, 0)
		}
		time.Sleep(5 * time.Second)
	}
}

// expect checks what all nodes have left of the limit.
func (f *forgivers) expect(what string, want int64) {
	f.t.Helper()
	for i, m := range f.nodes {
		if left, _ := m.table.Room(m.alg.Compile(), f.key, []byte(resetKey), wallClock()); left != want {
			f.t.Errorf("%s: node %d has %d left, want %d", what, i, left, want)
		}
	}
}

// Two nodes that forgive at once leave all of the limit, once, and what is spent then counts.
func TestTwoNodesForgiveAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newForgivers(t, 3, 240*time.Hour)
		for _, m := range f.nodes {
			f.take(m, resetKey, 12)
		}
		f.hear()
		f.expect("before", 4)
		f.net.become(&f.net.unanswered, .5)
		f.forgive(0)
		f.forgive(1)
		time.Sleep(10 * time.Second)
		f.net.heal()
		f.hear()
		f.expect("when both have forgiven", 40)
		f.take(f.nodes[2], resetKey, 7)
		f.hear()
		f.expect("after seven requests", 33)
		f.close()
	})
}

// A forgiving under a stamp that is ahead of the store's clock, as that has stepped back, keeps no
// other node that has heard of it from forgiving the key later. Nothing is forgiven again, neither
// by what is said until then nor when the clock is there.
func TestAForgivingUnderAStampAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newForgivers(t, 3, 240*time.Hour)
		f.take(f.nodes[0], resetKey, 5)
		f.hear()
		f.forgive(0)
		time.Sleep(3 * time.Second)
		f.store.step(-time.Minute)
		time.Sleep(10 * time.Second)
		f.take(f.nodes[0], resetKey, 9)
		f.forgive(1)
		f.hear()
		f.expect("when the second node has forgiven", 40)
		f.take(f.nodes[0], resetKey, 3)
		f.take(f.nodes[2], resetKey, 4)
		f.hear()
		f.expect("after seven requests", 33)
		for range 20 {
			f.hear()
		}
		f.expect("when the stamp is no longer ahead", 33)
		f.close()
	})
}

// A key that is dropped before the store has heard that it is forgiven is forgiven all the same,
// and what is forgiven when a process ends is said before.
func TestAForgivingIsSaidInTheEnd(t *testing.T) {
	for _, ends := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newForgivers(t, 2, 240*time.Hour)
			f.take(f.nodes[1], resetKey, 9)
			f.hear()
			if ends {
				f.nodes[0].table.Configure(table.SyncConfig{Params: f.alg, Interval: time.Hour}, 1000)
				f.forgive(0)
				f.end(f.nodes[0], false)
			} else {
				f.net.become(&f.net.lost, 1)
				f.forgive(0)
				f.nodes[0].table.Sweep(wallClock())
				time.Sleep(time.Minute)
				f.net.heal()
				time.Sleep(time.Minute)
			}
			f.hear()
			f.expect("in the end", 40)
			f.close()
		})
	}
}

// A cell ends when nothing in it counts any more. No node says the stamp of a forgiving after that:
// it would empty the next cell, of which others have said something.
func TestAStampEndsBeforeItsCell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newForgivers(t, 2, time.Hour)
		f.take(f.nodes[0], resetKey, 5)
		f.hear()
		f.forgive(0)
		time.Sleep(3 * time.Second)
		for len(f.store.counting()) > 0 {
			time.Sleep(time.Minute)
		}
		f.take(f.nodes[1], resetKey, 30)
		time.Sleep(5 * time.Second)
		f.take(f.nodes[0], resetKey, 1)
		f.hear()
		f.expect("when the cell has ended", 9)
		f.close()
	})
}
