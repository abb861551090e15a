//go:build chaos

package ratesync

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// startWorld is regions with so many nodes each, where keys are told as in a zone.
func startWorld[S any](t *testing.T, regions, nodes int, alg algorithms.Params) *world[S] {
	w := newWorld[S](t, 1, alg, regions)
	time.Sleep(alg.Window / 2)
	for _, r := range w.regions {
		for range nodes {
			m := w.join(r)
			m.source.SetLeastTold(LeastTold(alg))
		}
	}
	time.Sleep(time.Minute)
	return w
}

// A client below its limit that is only in one region is never denied, and the other region's Redis
// learns of its key and of nothing else: not of the many that are below their threshold.
func TestAClientOfOneRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alg := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 1000, Window: 10 * time.Second, SubWindows: 1}
		w := startWorld[algorithms.WindowState](t, 2, 3, alg)
		here, there := w.regions[0], w.regions[1]
		denied := 0
		for i := range 10 * 950 {
			m := here.nodes[i%3]
			if !m.table.Take(alg.Compile(), keys.KeyOf([]byte("client")), []byte("client"), wallClock(), 1, 0).Allowed {
				denied++
			}
			if raw := fmt.Append(nil, "other", i/20); i%20 == 0 {
				m.table.Take(alg.Compile(), keys.KeyOf(raw), raw, wallClock(), 1, 0)
			}
			time.Sleep(10 * time.Second / 950)
		}
		if denied > 0 {
			t.Errorf("%d requests of a client at 0.95 of its limit are denied", denied)
		}
		want := keys.IDOf([]byte("client"))
		known := there.store.counting()
		for _, key := range known {
			if c, ok := parseCellKey(key); !ok || c.id != want {
				t.Errorf("the other region has %s", key)
			}
		}
		if n := told(here, there); len(known) != 1 || n == 0 {
			t.Errorf("the other region has %d cells, and %d of the client's newest window", len(known), n)
		}
		for _, m := range there.nodes {
			if s := m.rep.Status(); s.Keys > 0 {
				t.Errorf("a node of the other region has asked for %d keys", s.Keys)
			}
		}
		w.close()
	})
}

// silent is a limit of 100 over two regions of which the second can't read the first. In between
// something happens to both.
func silent[S any](t *testing.T, alg algorithms.Params, happens string) {
	w := startWorld[S](t, 2, 2, alg)
	here, there, link, raw := w.regions[0], w.regions[1], w.regions[1].links["r0"], []byte("client")
	take := func(r *testRegion[S], n int) (left int64) {
		d := r.nodes[0].table.Take(alg.Compile(), keys.KeyOf(raw), raw, wallClock(), int64(n), 0)
		if !d.Allowed {
			t.Errorf("%d units are denied", n)
		}
		return d.Remaining
	}
	link.become(&link.lost, 1)
	time.Sleep(time.Second) // what was under way has arrived
	take(here, 30)
	take(there, 20)
	time.Sleep(5 * time.Second)
	if a, b := take(here, 1), take(there, 1); a > 100-51 || a < 100-52 || b > 100-21 || b < 100-22 {
		t.Errorf("while the link is silent %d and %d are left, want 49 and 79", a, b)
	}
	sum, mine := 52, int64(34)
	switch happens {
	case "reset":
		stamp := here.store.time().UnixMicro()
		set := &reset.Set{Keys: map[[16]byte]reset.Reset{keys.IDOf(raw): {Stamp: stamp, At: stamp * 1000, Until: stamp*1000 + int64(100*time.Hour)}}}
		for _, r := range w.regions {
			for _, m := range r.nodes {
				m.table.Reset(wallClock(), set)
			}
		}
		sum, mine = 0, 3 // under the reset's stamp
	case "forgiven":
		here.nodes[0].table.ForgiveKey(keys.KeyOf(raw), 0, wallClock())
		sum, mine = -4, 3 // what is spent there before it hears of it is forgiven
	case "reload":
		for _, r := range w.regions {
			for _, m := range r.nodes {
				w.reload(r, m)
			}
		}
	}
	take(here, 3)
	take(there, 4)
	sum += 7
	time.Sleep(3 * time.Second)
	link.heal()
	time.Sleep(table.ResentReserved + 20*time.Second)
	if n := told(here, there); n != mine {
		t.Errorf("the other region has been told of %d, want %d", n, mine)
	}
	if happens == "forgiven" { // what a node takes before it hears of that is forgiven
		take(there, 0)
		time.Sleep(5 * time.Second)
	}
	take(here, 1)
	take(there, 1)
	sum += 2
	for _, r := range w.regions {
		time.Sleep(5 * time.Second) // they have asked
		if left := take(r, 1); left > int64(100-sum) || left < int64(100-sum-2) {
			t.Errorf("in the end %d are left in %s, want %d", left, r.name, 100-sum-1)
		}
		sum++
	}
	if here.nodes[0].table.Take(alg.Compile(), keys.KeyOf(raw), raw, wallClock(), int64(100-sum)+2, 0).Allowed {
		t.Error("more than the limit is admitted")
	}
	w.close()
}

// reload moves a node to another client of the same Redis, as a configuration that has changed.
func (w *world[S]) reload(r *testRegion[S], m *member[S]) {
	old, others := m.rep, m.rep.relay.Regions
	m.rep = NewReplicator(m.wire, "test", time.Second, wallClock, zap.NewNop())
	m.rep.Relay(others)
	m.rep.Attach(m.source, m.rate)
	old.Close()
}

// Every kind of limit goes over two regions with one link silent, units that are reserved until a
// response has ended as well: each side decides by what it knows, and when the link is back, by
// all; also where counts were reset meanwhile, or a node has another configuration.
func TestKindsOverASilentLink(t *testing.T) {
	of := func(k algorithms.Kind) algorithms.Params {
		return algorithms.Params{Kind: k, Limit: 100, Burst: 100, Window: 24 * time.Hour, SubWindows: 1}
	}
	reserved := of(algorithms.SlidingWindow)
	reserved.Reserves = true
	for name, run := range map[string]func(*testing.T, string){
		"fixed_window":   func(t *testing.T, what string) { silent[algorithms.WindowState](t, of(algorithms.FixedWindow), what) },
		"sliding_window": func(t *testing.T, what string) { silent[algorithms.WindowState](t, of(algorithms.SlidingWindow), what) },
		"reserved":       func(t *testing.T, what string) { silent[algorithms.WindowState](t, reserved, what) },
		"sliding_log":    func(t *testing.T, what string) { silent[algorithms.LogState](t, of(algorithms.SlidingLog), what) },
		"token_bucket":   func(t *testing.T, what string) { silent[algorithms.BucketState](t, of(algorithms.TokenBucket), what) },
		"gcra":           func(t *testing.T, what string) { silent[algorithms.BucketState](t, of(algorithms.GCRA), what) },
	} {
		for _, what := range []string{"nothing", "reset", "forgiven", "reload"} {
			t.Run(name+" "+what, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { run(t, what) }) })
		}
	}
}

// What a region had less of than it was told, as a response has refunded it, comes not back once
// the key is forgiven there.
func TestAForgivingAfterARefundGoesToOtherRegions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorld[algorithms.WindowState](t, 2, 2, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 100, Window: 240 * time.Hour})
		here, there, raw := w.regions[0], w.regions[1], []byte("client")
		l, at := w.alg.Compile(), here.nodes[0].table
		at.Take(l, keys.KeyOf(raw), raw, wallClock(), 30, 0)
		time.Sleep(5 * time.Second)
		last := at.Take(l, keys.KeyOf(raw), raw, wallClock(), 10, 0)
		time.Sleep(5 * time.Second)
		at.Refund(l, keys.KeyOf(raw), last, 10)
		time.Sleep(5 * time.Second)
		if n := told(here, there); n < 30 {
			t.Errorf("the other region was told of %d, want 30", n)
		}
		at.ForgiveKey(keys.KeyOf(raw), wallClock(), wallClock())
		time.Sleep(5 * time.Second)
		for passed := range 120 {
			if n := told(here, there); n != 0 {
				t.Fatalf("%d s later the other region is told of %d, which is forgiven", passed, n)
			}
			time.Sleep(time.Second)
		}
		there.nodes[1].table.Take(l, keys.KeyOf(raw), raw, wallClock(), 0, 0)
		time.Sleep(5 * time.Second) // it has heard of that
		d := there.nodes[1].table.Take(l, keys.KeyOf(raw), raw, wallClock(), 1, 0)
		time.Sleep(5 * time.Second)
		if d = there.nodes[1].table.Take(l, keys.KeyOf(raw), raw, wallClock(), 1, 0); d.Remaining != 98 {
			t.Errorf("a node of the other region has %d left, want 98", d.Remaining)
		}
		w.close()
	})
}

// Just below their thresholds in each of six regions, keys take little beyond their limit: neither
// those with many sub-windows, of which each may be below, nor buckets with a small burst.
func TestWhatSixRegionsDoNotTell(t *testing.T) {
	t.Run("sub_windows 31", func(t *testing.T) {
		if redistest.Raced {
			t.Skip("it runs without the detector of races")
		}
		synctest.Test(t, func(t *testing.T) {
			alg := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 64 * 32 * 10, Window: 310 * time.Second, SubWindows: 31}
			w := startWorld[algorithms.WindowState](t, 6, 1, alg)
			admitted := int64(0)
			take := func(r *testRegion[algorithms.WindowState], n int64) bool {
				raw := []byte("client")
				if !r.nodes[0].table.Take(alg.Compile(), keys.KeyOf(raw), raw, wallClock(), n, 0).Allowed {
					return false
				}
				admitted += n
				return true
			}
			for range 31 {
				for _, r := range w.regions {
					take(r, LeastTold(alg)-1)
				}
				time.Sleep(10 * time.Second)
			}
			for range 1000 { // a flood, all within the window
				for _, r := range w.regions {
					take(r, 10)
				}
				time.Sleep(10 * time.Millisecond)
			}
			// All take at once what is below the threshold in the round in which the limit is
			// reached, and in the flood what all ask for while the news is on its way: until the
			// next sync and the next reading, and for two calls to the other region.
			const asked, news = 6 * 1000, .35
			most := 1 + (6*float64(LeastTold(alg)-1)+asked*news)/float64(alg.Limit)
			if over := float64(admitted) / float64(alg.Limit); over > most || over < .95 {
				t.Errorf("%.3f of the limit are admitted", over)
			}
			w.close()
		})
	})
	t.Run("a small burst", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			alg := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 3600, Window: time.Hour, Burst: 10}
			w := startWorld[algorithms.BucketState](t, 6, 1, alg)
			admitted, start, raw := 0, wallClock(), []byte("client")
			for _, r := range w.regions {
				for range 30 {
					if r.nodes[0].table.Take(alg.Compile(), keys.KeyOf(raw), raw, wallClock(), 1, 0).Allowed {
						admitted++
					}
					time.Sleep(100 * time.Millisecond)
				}
			}
			const unseen = 6 * 3 // what a region admits before it has asked
			if most := int(10 + unseen + (wallClock()-start)/int64(time.Second)); admitted > most || admitted < 10 {
				t.Errorf("%d are admitted in all regions, at most %d", admitted, most)
			}
			w.close()
		})
	})
}

// Ten nodes send each 10 s what they have. After a FLUSHALL of their Redis the other region's total
// of them never falls, and in the end all is there again.
func TestTenNodesAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld[algorithms.WindowState](t, 1, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour}, 2)
		w.names, w.waits, w.rate = w.names[:1], true, 10*time.Second
		time.Sleep(12 * time.Hour)
		for _, r := range w.regions {
			for range 10 {
				w.join(r)
			}
		}
		time.Sleep(2 * time.Minute)
		here, there := w.regions[0], w.regions[1]
		for i, m := range here.nodes {
			w.takeOf(m, []byte(w.names[0]), 1+i)
			time.Sleep(time.Second)
		}
		time.Sleep(30 * time.Second)
		if got := told(here, there); got != 55 {
			t.Fatalf("the other region has %d of 55", got)
		}
		here.store.forget(0, true)
		for highest, i := int64(55), 0; i < 1200; i++ {
			if i%200 == 0 {
				w.takeOf(here.nodes[i/200], []byte(w.names[0]), 1)
			}
			time.Sleep(100 * time.Millisecond)
			n := told(here, there)
			if n < highest {
				t.Errorf("the total has fallen from %d to %d", highest, n)
				break
			}
			highest = n
		}
		time.Sleep(time.Minute)
		w.compare()
		w.close()
	})
}

// A replica that takes over may be fifty calls behind, at home or in the other region: nothing is
// missed, though nothing is counted afterwards.
func TestAFailoverToAReplicaThatIsBehind(t *testing.T) {
	for which, name := range []string{"at home", "in the other region"} {
		t.Run(name, func(t *testing.T) {
			inCalmWorld(t, false, func(t *testing.T, w *windowWorld, here, _ *windowRegion) {
				r := w.regions[which]
				count := func() {
					for i := range 50 {
						w.takeOf(here.nodes[i%2], fmt.Append(nil, "key", i%20), 1)
						time.Sleep(100 * time.Millisecond)
					}
				}
				count()
				behind := r.store.Values()
				count()
				time.Sleep(5 * time.Second)
				r.store.restore(behind)
				w.breakLinks(r)
				time.Sleep(table.ResentReserved + 30*time.Second)
				w.compare()
			})
		})
	}
}
