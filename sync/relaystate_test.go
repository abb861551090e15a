package ratesync

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// shownOf is how all nodes of a region show the only other one.
func shownOf(r *windowRegion) (all []RegionStatus) {
	for _, m := range r.nodes {
		all = append(all, m.rep.RegionsStatus().Others...)
	}
	return all
}

// All nodes of a region show how another one stands: that it is cut off, for how long, and how much
// waits; and that it is back.
func TestNodesShowTheOtherRegion(t *testing.T) {
	inCalmWorld(t, false, func(t *testing.T, w *windowWorld, here, _ *windowRegion) {
		link := here.links["r1"]
		relays := 0
		for _, m := range here.nodes {
			if n := m.rep.Nodes(); n != 3 {
				t.Errorf("a node counts %d nodes, want those of its region, 3", n)
			}
			if s := m.rep.RegionsStatus(); s.Here != "r0" || s.Others[0].Region != "r1" {
				t.Errorf("a node of r0 shows %+v", s)
			} else if s.Relay {
				relays++
			}
		}
		if relays != 1 {
			t.Errorf("%d nodes say that they tell the other region", relays)
		}
		for _, s := range shownOf(here) {
			if !s.Up || s.Lag > 3 || s.Backlog != 0 {
				t.Errorf("while all is well a node shows %+v", s)
			}
		}
		link.become(&link.lost, 1)
		time.Sleep(2 * time.Second)
		w.take(here, 1)
		w.take(here, 1)
		time.Sleep(20 * time.Second)
		for _, s := range shownOf(here) {
			if s.Up || s.Lag < 18 || s.Lag > 26 || s.Backlog < 1 || s.Backlog > 2 {
				t.Errorf("of a region that is cut off a node shows %+v", s)
			}
		}
		link.heal()
		time.Sleep(10 * time.Second)
		for _, s := range shownOf(here) {
			if !s.Up || s.Lag > 3 || s.Backlog != 0 {
				t.Errorf("of a region that is back a node shows %+v", s)
			}
		}
		if w.messages() == 0 {
			t.Error("nothing was told")
		}
	})
}

// A node whose own Redis is silent knows nothing of other regions, and shows none as up, until it
// answers. What it was told last gets older meanwhile.
func TestNodesWithoutRedisShowNoRegionAsUp(t *testing.T) {
	inCalmWorld(t, false, func(t *testing.T, w *windowWorld, here, there *windowRegion) {
		expect := func(what string, r *windowRegion, up bool, least, most float64) {
			t.Helper()
			for _, s := range shownOf(r) {
				if s.Up != up || s.Up != (s.Reason == "") || s.Lag < least || s.Lag > most {
					t.Errorf("%s: a node of %s shows %+v, want up %t, and told %v to %v s ago", what, r.name, s, up, least, most)
				}
			}
		}
		here.net.become(&here.net.lost, 1)
		time.Sleep(lostRegionAfter - 2*time.Second)
		expect("silent for a while", here, true, 7, 12)
		time.Sleep(4 * time.Second)
		expect("silent for longer", here, false, 11, 16)
		time.Sleep(10 * time.Second)
		expect("silent for long", here, false, 21, 26)
		here.net.heal()
		time.Sleep(15 * time.Second)
		expect("it answers again", here, true, 0, 3)
		expect("it answers again", there, true, 0, 3)
	})
}

// Of more counts that wait than a page has, all are shown.
func TestBacklogIsShownWhole(t *testing.T) {
	inCalmWorld(t, false, func(t *testing.T, w *windowWorld, here, _ *windowRegion) {
		link := here.links["r1"]
		link.become(&link.lost, 1)
		w.names = nil
		for i := range pageSize + 100 {
			name := []byte{'k', byte(i), byte(i >> 8)}
			w.takeOf(here.nodes[0], name, 1)
		}
		time.Sleep(30 * time.Second)
		for _, s := range shownOf(here) {
			if s.Backlog != pageSize+100 {
				t.Errorf("a node shows %+v, of %d", s, pageSize+100)
			}
		}
	})
}

// Clocks that differ are shown, and warned of once until they are together again.
func TestClocksOfRegionsDiffer(t *testing.T) {
	for _, c := range []struct {
		window, ahead time.Duration
		warns         bool
	}{
		{24 * time.Hour, 31 * time.Second, true},
		{24 * time.Hour, 1100 * time.Millisecond, true},
		{24 * time.Hour, 700 * time.Millisecond, false},
		{10 * time.Second, 700 * time.Millisecond, true},
		{10 * time.Second, 400 * time.Millisecond, false},
		{time.Second, 50 * time.Millisecond, false},
		{time.Second, -700 * time.Millisecond, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			core, log := observer.New(zap.WarnLevel)
			w := newWorld[algorithms.WindowState](t, 1, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: c.window}, 2)
			w.log = zap.New(core)
			here, there := w.regions[0], w.regions[1]
			for _, r := range w.regions {
				w.join(r)
			}
			time.Sleep(time.Minute)
			warned := func() int {
				n := 0
				for _, e := range log.FilterMessageSnippet("clocks").All() {
					if e.ContextMap()["code"] == warning.ClocksApart && e.ContextMap()["region"] == "r1" {
						n++
					}
				}
				return n
			}
			// The nodes' own clock is of no account.
			here.store.step(5 * time.Second)
			there.store.step(5 * time.Second)
			time.Sleep(20 * time.Second)
			log.TakeAll()
			there.store.step(c.ahead)
			time.Sleep(10 * time.Second)
			if got := warned() == 1; got != c.warns {
				t.Errorf("%v apart with a window of %v: warned %d times, want %t", c.ahead, c.window, warned(), c.warns)
			}
			for _, s := range shownOf(here) {
				if math.Abs(s.Offset-c.ahead.Seconds()) > 0.15 || !s.Up || s.Backlog > 0 || s.Lag > 3 {
					t.Errorf("%v apart: a node shows %+v", c.ahead, s)
				}
			}
			there.store.step(-c.ahead)
			time.Sleep(10 * time.Second)
			there.store.step(c.ahead)
			time.Sleep(10 * time.Second)
			if want := map[bool]int{true: 2}[c.warns]; warned() != want {
				t.Errorf("%v apart again: warned %d times, want %d", c.ahead, warned(), want)
			}
			w.close()
		})
	}
}
