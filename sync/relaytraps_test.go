//go:build chaos

package ratesync

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// pushAs has a node, or another region, say what it has in a hash that regions share.
func pushAs(t *testing.T, client redis.UniversalClient, hash, node string, seq, total int64) {
	t.Helper()
	if err := pushScript.Run(t.Context(), client, []string{hash, "told", "hurry"}, node, seq, 0, "60000 1", total, fmt.Sprint(total)).Err(); err != nil {
		t.Fatal(err)
	}
}

// readRegional is what a reading says that this region has in a hash.
func readRegional(t *testing.T, client redis.UniversalClient, hash string) (m regional) {
	t.Helper()
	text, err := regionalScript.Run(t.Context(), client, []string{"read", "told", hash}, 0, 0, 0).Text()
	if err != nil {
		t.Fatal(err)
	}
	var number, before, ttl int64
	if _, err := fmt.Sscanf(text, "%d %d\n%d %d %s", &number, &before, &ttl, &m.total, &m.rest); err != nil {
		t.Fatalf("a reading is %q: %v", text, err)
	}
	return m
}

// What any other region has told is never taken for what the nodes here have: not that of one that
// was removed from the configuration, and not the own name, as where two names lead to one Redis.
func TestARegionThatIsNotConfiguredIsNotLocal(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	client := r.Client()
	defer client.Close()
	pushAs(t, client, "h", "node", 1, 5)
	for i, region := range []string{"~removed", "~own", "~other"} {
		pushAs(t, client, "h", region, int64(10+i), 100)
	}
	pushAs(t, client, "h", "node", 2, 6)
	if m := readRegional(t, client, "h"); m.total != 6 || m.rest != "6" {
		t.Errorf("a reading has %d and %s, want 6 and 6", m.total, m.rest)
	}
}

// A message of a region that is overtaken by a newer one, or comes twice, changes nothing: neither
// its total nor the sums fall or grow until the next message.
func TestAnOvertakenMessageOfARegionChangesNothing(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	client := r.Client()
	defer client.Close()
	pushAs(t, client, "h", "node", 1, 5)
	pushAs(t, client, "h", "~eu", 20, 100)
	before := client.HGetAll(t.Context(), "h").Val()
	for _, late := range [][2]int64{{20, 100}, {20, 130}, {10, 40}, {19, 150}} {
		pushAs(t, client, "h", "~eu", late[0], late[1])
		if after := client.HGetAll(t.Context(), "h").Val(); !maps.Equal(before, after) {
			t.Errorf("message %d with %d after message 20 with 100 changes %v into %v", late[0], late[1], before, after)
		}
	}
	if before["sum"] != "105 105" || before["~eu"] != "20 100 100" {
		t.Errorf("Redis has %v", before)
	}
}

// After refunds the nodes may have less than nothing, and other regions are told of nothing.
func TestATotalBelowZeroIsToldAsZero(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	client := r.Client()
	defer client.Close()
	r.Do("HSET", "h", "node", "1 -3 2", "~eu", "7 10 10", "~", "10 10 10", "sum", "7 12")
	if m := readRegional(t, client, "h"); m.total != 0 || m.rest != "2" {
		t.Errorf("a reading has %d and %s, want 0 and 2", m.total, m.rest)
	}
}

// A change is told with a score above all others, though the clock was set back, or another server
// that has taken over is behind: else it would be below the cursors, and lost.
func TestALaterChangeHasTheHigherScore(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	client := r.Client()
	defer client.Close()
	ahead := time.Now().Add(time.Hour).UnixMicro()
	r.Do("ZADD", "told", ahead, "earlier")
	pushAs(t, client, "h", "node", 1, 5)
	if got := client.ZScore(t.Context(), "told", "h").Val(); int64(got) <= ahead {
		t.Errorf("a change has the score %.0f after %d", got, ahead)
	}
}

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
		p := parsePage(toldScript.Run(t.Context(), client, []string{"told"}, after, pageSize, "weigh"), "name")
		if p.err != nil || len(p.names) == 0 {
			break
		}
		if len(p.names) > pageSize+together {
			t.Fatalf("a page has %d names", len(p.names))
		}
		for i, name := range p.names {
			var n int64
			if fmt.Sscanf(name, "name%d", &n); seen[name] || p.scores[i] != 1e15+n/together {
				t.Fatalf("%s is read with the score %d, %t before", name, p.scores[i], seen[name])
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

// The hashes of one client are in one call, the newest first, and a call has those of one table: so
// a bucket's fill is written once, and hashes live as long as those of their own table.
func TestHashesOfAClientStandTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := calmWorld(t, false)
		p := w.regions[0].nodes[0].rep.relay.pairs[0]
		var names []string
		for _, spec := range []Spec{{Zone: "z", Kind: 't', Window: time.Second}, {Zone: "z", Kind: 't', Window: 24 * time.Hour}, {Zone: "y", Kind: 't', Window: time.Second}} {
			for client := range 2 * batchSize {
				for epoch := range int64(3) {
					names = append(names, string(NewKeyspace("test").Table(spec).appendEpoch(nil, keys.IDOf(fmt.Append(nil, client)), 9+epoch)))
				}
			}
		}
		rand.New(rand.NewPCG(1, 1)).Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		calls := make(map[string]int)
		sent := 0
		for n, batch := range p.batches(names) {
			sent += len(batch)
			for i, h := range batch {
				if h.table != batch[0].table {
					t.Errorf("a call has %s and %s", h.table, batch[0].table)
				}
				client := h.table + " " + h.id
				if was, ok := calls[client]; ok && (was != n || batch[i-1].id != h.id || batch[i-1].epoch != h.epoch+1) {
					t.Errorf("%s of epoch %d stands in call %d after %v", client, h.epoch, n, batch[max(0, i-1)])
				}
				calls[client] = n
			}
		}
		if sent != len(names) {
			t.Errorf("%d of %d hashes are in calls", sent, len(names))
		}
		w.close()
	})
}

// A hash lives in another region as long as it does at home.
func TestAHashLivesAsLongInAnotherRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := calmWorld(t, false)
		here, there := w.regions[0], w.regions[1]
		w.take(here, 3)
		time.Sleep(10 * time.Second)
		rest := func(r *testRegion[algorithms.WindowState]) time.Duration {
			r.store.mu.Lock()
			defer r.store.mu.Unlock()
			return r.store.expires[slices.Concat(r.store.counting(), []string{"none"})[0]].Sub(r.store.time())
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
