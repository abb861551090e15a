//go:build chaos

package ratesync

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// toldOf is of how many keys that have so much one region has told another one.
func toldOf[S any](here, there *testRegion[S], least int64) (n int) {
	there.store.mu.Lock()
	defer there.store.mu.Unlock()
	for _, hash := range there.store.hashes {
		if second(hash["~"+here.name]) >= least {
			n++
		}
	}
	return n
}

// Where more waits than a second can tell, the keys come first that have most of their limit,
// though they changed last, and what waits is shown. All is told in the end, and only once: a key
// that was told ahead of the others is not told again with them.
func TestTheFullestComeFirst(t *testing.T) {
	const many, full = 5 * linkSecond / 2, 60 // the last ones are fewer than a second can tell
	for name, breaks := range map[string]bool{"calm": false, "the link breaks": true} {
		if redistest.Raced && !breaks {
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld[algorithms.WindowState](t, 1, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour}, 2)
				w.waits, w.room = true, many
				w.begin()
				here, there, link := w.regions[0], w.regions[1], w.regions[0].links["r1"]
				link.become(&link.lost, 1)
				for i := range many {
					w.takeOf(here.nodes[i%2], fmt.Append(nil, "key", i), 1)
				}
				time.Sleep(5 * time.Second)
				for i := range full {
					w.takeOf(here.nodes[i%2], fmt.Append(nil, "full", i), 1000)
				}
				time.Sleep(5 * time.Second)
				before := w.messages()
				link.heal()
				got := 0
				for tries := 0; got <= linkSecond*3/2 && tries < 10_000; tries++ {
					if breaks && tries == 50 {
						link.become(&link.lost, 1)
						time.Sleep(3500 * time.Millisecond)
						link.heal()
					}
					time.Sleep(10 * time.Millisecond)
					got = toldOf(here, there, 1)
				}
				if n := toldOf(here, there, 1000); n < full || got > 2*linkSecond {
					t.Errorf("%d of %d full keys are among the first %d that are told of %d", n, full, got, many+full)
				}
				for _, s := range shownOf(here) {
					if s.Backlog < many-2*linkSecond || s.Backlog > many+full {
						t.Errorf("a node shows %+v", s)
					}
				}
				time.Sleep(time.Minute)
				w.compare()
				if n := w.messages() - before; !breaks && n != many+full {
					t.Errorf("%d messages for %d keys", n, many+full)
				}
				for _, s := range shownOf(here) {
					if s.Backlog != 0 || s.Lag > 3 {
						t.Errorf("in the end a node shows %+v", s)
					}
				}
				w.close()
			})
		})
	}
}

// Where a link hangs while thousands of keys a second should not wait, no more of them are kept in
// memory than a second can tell. The others come with all that has changed.
func TestWhatIsUrgentIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 2 * linkSecond
		w := newWorld[algorithms.WindowState](t, 1, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour}, 2)
		w.room = 2 * many
		w.begin()
		here, link := w.regions[0], w.regions[0].links["r1"]
		time.Sleep(time.Second)
		link.become(&link.lost, 1)
		most := 0
		for i := range many {
			w.takeOf(here.nodes[i%2], fmt.Append(nil, "key", i), 1) // new, and so urgent
			if i%100 > 0 {
				continue
			}
			time.Sleep(20 * time.Millisecond)
			for _, m := range here.nodes {
				p := m.rep.relay.pairs[0]
				p.mu.Lock()
				most = max(most, len(p.urgent))
				p.mu.Unlock()
			}
		}
		if most != linkSecond {
			t.Errorf("at most %d keys that are urgent were in memory, want %d", most, linkSecond)
		}
		link.heal()
		time.Sleep(30 * time.Second)
		w.compare()
		w.close()
	})
}

// A link that was silent for longer than its heartbeats were known tells what has changed
// meanwhile and in the minute before, and not all that there is: nothing was lost.
func TestASilentLinkTellsWhatHasChanged(t *testing.T) {
	const many, changed = 300, 10
	for regions, silent := range map[int]time.Duration{2: time.Minute, 3: 30 * time.Second} {
		if redistest.Raced && regions > 2 {
			continue
		}
		t.Run(fmt.Sprint(regions, " regions"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld[algorithms.WindowState](t, 1, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour}, regions)
				w.begin()
				here := w.regions[0]
				count := func(n int) {
					for i := range n {
						w.takeOf(here.nodes[i%2], fmt.Append(nil, "key", i), 1)
					}
					time.Sleep(5 * time.Second)
				}
				count(many)
				time.Sleep(5 * time.Minute)
				count(changed)
				for _, link := range []*network{here.links["r1"], w.regions[1].links["r0"]} {
					link.become(&link.lost, 1)
				}
				time.Sleep(silent)
				count(changed)
				before := w.messages()
				w.healLinks()
				time.Sleep(10 * time.Second)
				w.compare()
				if n := w.messages() - before; n < changed || n > 2*changed {
					t.Errorf("%d messages, where %d of %d keys have changed", n, changed, many)
				}
				w.close()
			})
		})
	}
}
