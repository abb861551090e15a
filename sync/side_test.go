package ratesync

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// All nodes of a region know of how many regions it hears. It hears of another one where both ways
// are open, so that two regions agree whether they are on one side.
func TestSidesOfRegions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld[algorithms.WindowState](t, 1, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour}, 3)
		w.divides = true
		for _, r := range w.regions {
			for range 2 {
				w.join(r)
			}
		}
		// expect waits until a change is known, and holds each node to what its region hears.
		expect := func(what string, want ...int64) {
			t.Helper()
			time.Sleep(lostRegionAfter + relayLease + 3*time.Second)
			for i, r := range w.regions {
				for _, m := range r.nodes {
					if heard, of := m.rep.Side(); heard != want[i] || of != 3 {
						t.Errorf("%s: a node of region %d hears %d of %d regions, want %d", what, i, heard, of, want[i])
					}
				}
			}
		}
		cut := func(from, to int) {
			link := w.regions[from].links[w.regions[to].name]
			link.become(&link.lost, 1)
		}
		expect("at first", 3, 3, 3)
		for _, other := range []int{1, 2} {
			cut(0, other)
			cut(other, 0)
		}
		expect("a region is cut off", 1, 2, 2)
		w.healLinks()
		expect("the links are back", 3, 3, 3)
		cut(0, 1)
		expect("one way is cut", 2, 2, 3)
		w.healLinks()
		expect("the way is back", 3, 3, 3)
		r := w.regions[2]
		r.net.become(&r.net.lost, 1)
		expect("the Redis of a region is away", 2, 2, 1)
		r.net.heal()
		expect("the Redis is back", 3, 3, 3)
		m := r.nodes[0] // another node becomes the relay
		m.wire.cut()
		m.source.Detach()
		m.rep.Close()
		r.nodes = r.nodes[1:]
		expect("a node has died", 3, 3, 3)
		w.close()
	})
}
