//go:build chaos

package ratesync

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// Very many names are never read by one script: each page has a bounded number, none ends within a
// score, and all of them together have each name once.
func TestManyNamesAreReadInPages(t *testing.T) {
	t.Parallel()
	const many, together = 30_000, 70
	r := redistest.Start(t)
	client := r.Client()
	defer client.Close()
	for first := 0; first < many; first += 1000 {
		var all []redis.Z
		for i := first; i < first+1000; i++ {
			all = append(all, redis.Z{Score: float64(1e15 + i/together), Member: fmt.Sprint("name", i)})
		}
		client.ZAdd(t.Context(), "told", all...)
	}
	seen, after := make(map[string]bool), int64(0)
	for {
		p := parsePage(toldScript.Run(t.Context(), client, []string{"told"}, after, pageSize, ""), "name")
		if p.err != nil || len(p.names) == 0 {
			break
		}
		if len(p.names) > pageSize+together {
			t.Fatalf("a page has %d names", len(p.names))
		}
		for _, name := range p.names {
			if seen[name] {
				t.Fatalf("%s is read twice", name)
			}
			seen[name] = true
		}
		if p.more != int64(many-len(seen)) {
			t.Fatalf("after %d of %d names come %d", len(seen), many, p.more)
		}
		after = p.last
	}
	if len(seen) != many {
		t.Errorf("%d of %d names are read", len(seen), many)
	}
}

// A hash lives in another region as long as it does at home.
func TestAHashLivesAsLongInAnotherRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := calmWorld(t, false)
		here, there := w.regions[0], w.regions[1]
		w.take(here, 3)
		time.Sleep(10 * time.Second)
		rest := func(r *testRegion[algorithms.WindowState]) time.Duration {
			return r.store.expiry(slices.Concat(r.store.counting(), []string{"none"})[0])
		}
		if a, b := rest(here), rest(there); (a-b).Abs() > time.Minute || a < 24*time.Hour {
			t.Errorf("a hash lives for %v, in the other region for %v", a, b)
		}
		w.close()
	})
}

// What was told stays where it is until another region has answered: when a relay dies whose
// messages had no answer, the next one tells of them, without a further request.
func TestARelayDiesBeforeItTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := calmWorld(t, true)
		here, link := w.regions[0], w.regions[0].links["r1"]
		link.become(&link.lost, 1)
		i := slices.IndexFunc(here.nodes, func(m *member[algorithms.WindowState]) bool { return m.rep.RegionsStatus().Relay })
		w.takeOf(here.nodes[(i+1)%3], []byte("a"), 7) // the one that stays has it
		time.Sleep(2500 * time.Millisecond)
		m := here.nodes[i]
		m.wire.cut()
		m.source.Detach()
		m.rep.Close()
		here.nodes = slices.Delete(here.nodes, i, i+1)
		link.heal()
		time.Sleep(relayLease + 5*time.Second)
		w.compare()
		w.close()
	})
}

// Nodes count the nodes of their region, whatever other regions there are.
func TestRegionsAreNotCountedAsNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld[algorithms.WindowState](t, 1, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour}, 4)
		w.begin()
		for _, r := range w.regions {
			for _, m := range r.nodes {
				if n := m.rep.Nodes(); n != 3 {
					t.Errorf("a node of %s counts %d nodes, want 3", r.name, n)
				}
			}
		}
		w.close()
	})
}
