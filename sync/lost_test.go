package ratesync

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// lossWorld is so many regions of three nodes that divide, with what they log.
//
// bubble: of the test.
func lossWorld(t *testing.T, seed uint64, regions int) (*windowWorld, *observer.ObservedLogs) {
	core, log := observer.New(zap.InfoLevel)
	w := newWorld[algorithms.WindowState](t, seed, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour}, regions)
	w.log, w.divides, w.apart = zap.New(core), true, true
	w.begin()
	return w, log
}

// linesOf are the lines about another region: its name, and the reason or "back".
func linesOf(log *observer.ObservedLogs) (lines []string) {
	for _, e := range log.FilterMessageSnippet("another region is").All() {
		line := fmt.Sprint(e.ContextMap()["region"], " back")
		if strings.Contains(e.Message, "is lost") {
			line = fmt.Sprint(e.ContextMap()["region"], " lost: ", e.ContextMap()["reason"])
		}
		lines = append(lines, line)
	}
	return lines
}

// cutOff cuts the way from one region to another, there or both there and back.
func (w *world[S]) cutOff(from, to int) *network {
	link := w.regions[from].links[w.regions[to].name]
	link.become(&link.lost, 1)
	return link
}

// expectAll holds each node of a region to how it shows the other one.
func expectAll(t *testing.T, what string, r *windowRegion, reason string) {
	t.Helper()
	for i, s := range shownOf(r) {
		if s.Up != (reason == "") || !strings.Contains(s.Reason, reason) || s.Up && s.Reason != "" {
			t.Errorf("%s: node %d of %s shows %+v, want %q", what, i, r.name, s, reason)
		}
	}
	for i, m := range r.nodes {
		want := int64(2)
		if reason != "" {
			want = 1
		}
		if heard, _ := m.rep.Side(); heard != want {
			t.Errorf("%s: node %d of %s hears %d regions, want %d", what, i, r.name, heard, want)
		}
	}
}

const (
	notPermits = "NOPERM"
	notReached = "its nodes do not reach the redis of this region"
)

// A region that does not let another one in is lost for both, with the reason on every node, within
// ten seconds. Nothing is logged of it before, and each change once.
func TestBothSidesShowALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, log := lossWorld(t, 1, 2)
		here, there := w.regions[0], w.regions[1]
		expectAll(t, "all is well", here, "")
		expectAll(t, "all is well", there, "")
		if lines := linesOf(log); lines != nil {
			t.Errorf("while all is well there is logged %q", lines)
		}
		for phase := range 10 {
			log.TakeAll()
			time.Sleep(time.Duration(phase) * 97 * time.Millisecond)
			link, why := here.links["r1"], notPermits
			if phase%2 == 0 {
				w.cutOff(0, 1)
				why = "timeout"
			} else {
				link.reject(redisReply("NOPERM User default has no permissions to run the 'evalsha' command"))
			}
			time.Sleep(lostRegionAfter - 3*time.Second)
			expectAll(t, "it is silent for some seconds", here, "")
			expectAll(t, "it is silent for some seconds", there, "")
			time.Sleep(3*time.Second + 300*time.Millisecond)
			expectAll(t, "it is lost", here, why)
			expectAll(t, "it does not come", there, notReached)
			time.Sleep(30 * time.Second)
			expectAll(t, "it is lost", here, why)
			link.heal()
			time.Sleep(regionTimeout + 4*time.Second)
			expectAll(t, "it is back", here, "")
			expectAll(t, "it is back", there, "")
			got := linesOf(log)
			slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(a[:2], b[:2]) })
			if len(got) != 4 || !strings.Contains(got[0], notReached) || got[1] != "r0 back" || !strings.Contains(got[2], "r1 lost") || !strings.Contains(got[2], why) || got[3] != "r1 back" {
				t.Errorf("phase %d: logged are %q", phase, got)
			}
		}
		w.close()
	})
}

// A loss and a return are logged once each, whichever node is the relay meanwhile, and while this
// region's Redis is away or forgets no other one is said to be back.
func TestALossIsLoggedOnce(t *testing.T) {
	for name, meanwhile := range map[string]func(*windowWorld, *windowRegion){
		"nothing":       func(*windowWorld, *windowRegion) {},
		"redis forgets": func(_ *windowWorld, r *windowRegion) { r.store.forget(0, true) },
		"clock steps": func(_ *windowWorld, r *windowRegion) {
			r.store.step(time.Minute)
		},
		"clock steps back": func(_ *windowWorld, r *windowRegion) {
			r.store.step(-time.Minute)
		},
		"redis is away":      func(_ *windowWorld, r *windowRegion) { away(r, 30*time.Second) },
		"redis is away soon": func(_ *windowWorld, r *windowRegion) { away(r, 8*time.Second) },
		"relay dies":         func(_ *windowWorld, r *windowRegion) { r.end(r.relay(), true) },
		"relay ends":         func(_ *windowWorld, r *windowRegion) { r.end(r.relay(), false) },
	} {
		if redistest.Raced && name != "relay dies" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, log := lossWorld(t, 1, 2)
				here, there := w.regions[0], w.regions[1]
				expect := func(what string, want ...string) {
					t.Helper()
					lines := slices.DeleteFunc(linesOf(log), func(line string) bool { return !strings.HasPrefix(line, "r1 ") })
					ok := len(lines) == len(want)
					for i := range min(len(lines), len(want)) {
						ok = ok && strings.HasPrefix(lines[i], "r1 "+want[i])
					}
					if !ok {
						t.Errorf("%s: logged are %q, want %q", what, lines, want)
					}
					log.TakeAll()
				}
				meanwhile(w, here)
				time.Sleep(40 * time.Second)
				expect("the other is not lost")
				expectAll(t, "the other is not lost", here, "")
				w.cutOff(0, 1)
				w.cutOff(1, 0)
				time.Sleep(20 * time.Second)
				expect("the other is lost", "lost")
				if len(here.nodes) < 3 {
					w.join(here)
					time.Sleep(10 * time.Second)
				}
				meanwhile(w, here)
				for range 400 {
					time.Sleep(100 * time.Millisecond)
					for _, s := range shownOf(here)[:2] {
						if s.Up {
							t.Fatalf("a node shows %+v", s)
						}
					}
				}
				expect("it stays lost")
				w.healLinks()
				time.Sleep(20 * time.Second)
				expect("it is back", "back")
				expectAll(t, "it is back", here, "")
				expectAll(t, "it is back", there, "")
				w.close()
			})
		})
	}
}

// A region is not lost while another node becomes the relay, though links are slow.
func TestANewRelayLosesNoRegion(t *testing.T) {
	for phase := range 10 {
		synctest.Test(t, func(t *testing.T) {
			w, log := lossWorld(t, 1, 2)
			here := w.regions[0]
			for _, r := range w.regions {
				for _, link := range r.links {
					link.slow(250 * time.Millisecond)
				}
			}
			time.Sleep(20*time.Second + time.Duration(phase)*100*time.Millisecond)
			here.end(here.relay(), true)
			time.Sleep(20 * time.Second)
			if lines := linesOf(log); lines != nil {
				t.Errorf("phase %d: logged are %q", phase, lines)
			}
			w.close()
		})
	}
}

// A region of which so much is read that it takes longer than it may be silent is not lost, and the
// node that reads it stays the relay: here 16 pages, at 800 ms each, of which all nodes there tell
// at once.
func TestALongReadLosesNoRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, log := observer.New(zap.InfoLevel)
		w := newWorld[algorithms.WindowState](t, 1, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour}, 2)
		w.log, w.divides, w.room = zap.New(core), true, 10_000
		w.begin()
		here, there := w.regions[0], w.regions[1]
		there.links["r0"].slow(400 * time.Millisecond)
		time.Sleep(20 * time.Second)
		relay := there.relay()
		for i := range 16 * pageSize {
			w.takeOf(here.nodes[0], fmt.Append(nil, i), 1)
		}
		for range 30 {
			time.Sleep(time.Second)
			for _, s := range append(shownOf(here), shownOf(there)...) {
				if !s.Up {
					t.Fatalf("a node shows %+v", s)
				}
			}
		}
		if lines := linesOf(log); lines != nil || there.relay() != relay {
			t.Errorf("logged are %q, and node %d is the relay in place of %d", lines, there.relay(), relay)
		}
		w.compare()
		w.close()
	})
}

// A sweep of what was told that takes longer than the lease leaves the relay where it is: here ten
// pages, of two calls each that take 300 ms.
func TestALongSweepKeepsTheRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, log := observer.New(zap.InfoLevel)
		w := newWorld[algorithms.WindowState](t, 1, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour}, 2)
		w.log, w.divides, w.room = zap.New(core), true, 10_000
		w.begin()
		here := w.regions[0]
		for i := range 10 * pageSize {
			w.takeOf(here.nodes[0], fmt.Append(nil, i), 1)
		}
		time.Sleep(10 * time.Second)
		relay := here.relay()
		here.net.slow(150 * time.Millisecond)
		for range 2 * int(sweepInterval/time.Second) {
			time.Sleep(time.Second)
			if now := here.relay(); now != relay {
				t.Errorf("node %d is the relay in place of %d", now, relay)
				break
			}
		}
		if lines := linesOf(log); lines != nil {
			t.Errorf("logged are %q", lines)
		}
		w.close()
	})
}

// away has a region's Redis be silent for a while.
//
// bubble: of the test.
func away(r *windowRegion, d time.Duration) {
	for _, m := range r.nodes {
		m.wire.net.become(&m.wire.net.lost, 1)
	}
	time.Sleep(d)
	for _, m := range r.nodes {
		m.wire.net.heal()
	}
}

// Whatever is lost and comes back, on each node and at each instant as many regions are divided by
// as are shown as up. What is cut off for ten seconds is shown as lost, what is well for some as
// up, and one node's log says the same, by turns.
func TestDivisionIsWhatIsShown(t *testing.T) {
	t.Parallel()
	for seed := range redistest.Seeds(2, 30) {
		inBubble(t, seed, func(t *testing.T) {
			w, log := lossWorld(t, seed, 3)
			log.TakeAll()
			o := &outages{isDown: map[string]bool{}, cutAt: map[string]time.Time{}, healedAt: map[string]time.Time{}, changedAt: map[string]time.Time{}, silenced: map[string][]time.Time{}}
			losses := 0
			for range 60 {
				w.toggle(o)
				for range w.random.IntN(250) {
					time.Sleep(100 * time.Millisecond)
					losses += w.checkShown(o)
				}
			}
			if losses == 0 {
				t.Error("no region was lost")
			}
			last := map[string]zapcore.Entry{}
			kind := func(e zapcore.Entry) string { return e.Message[:min(len(e.Message), len("another region is l"))] }
			for _, e := range log.FilterMessageSnippet("another region is").All() {
				way := fmt.Sprint(e.LoggerName, e.ContextMap()["region"])
				if had := last[way]; kind(e.Entry) == kind(had) && !o.silencedAt(e.LoggerName[1:], had.Time) {
					t.Errorf("two lines of %s in a row: %s", way, e.Message)
				}
				last[way] = e.Entry
			}
			w.close()
		})
	}
}

// outages are the links and Redis that are down, and since when pairs of regions are cut off from
// each other, or not.
type outages struct {
	isDown                     map[string]bool
	cutAt, healedAt, changedAt map[string]time.Time
	silenced                   map[string][]time.Time // when the Redis of a region went down
}

// silencedAt reports whether the Redis of a region went down when its relay logged something, so
// that no other node knows that it did.
//
// bubble: of the test.
func (o *outages) silencedAt(region string, logged time.Time) bool {
	return slices.ContainsFunc(o.silenced[region], func(at time.Time) bool { return at.Sub(logged).Abs() < relayInterval })
}

// quiet is since when nothing has changed that has to do with a pair, as the first of them sees it:
// a region whose own Redis was away begins to tell who is silent with a heartbeat after that, which
// may be the second one.
//
// bubble: of the test.
func (o *outages) quiet(i, j int) time.Duration {
	own := time.Since(o.changedAt[fmt.Sprint(i)]) - 2*relayInterval
	return min(time.Since(o.changedAt[pairOf(i, j)]), own, time.Since(o.changedAt[fmt.Sprint(j)]))
}

func pairOf(i, j int) string { return fmt.Sprint(min(i, j), max(i, j)) }

// toggle has a link or the Redis of a region be down, or up again.
//
// bubble: of the test.
func (w *world[S]) toggle(o *outages) {
	i := w.random.IntN(3)
	j := (i + 1 + w.random.IntN(2)) % 3
	what, nets := pairOf(i, j), []*network{w.regions[i].links[w.regions[j].name]}
	if w.random.IntN(3) == 0 {
		if what, nets = fmt.Sprint(i), nil; !o.isDown[what] {
			o.silenced[what] = append(o.silenced[what], time.Now())
		}
		for _, m := range w.regions[i].nodes {
			nets = append(nets, m.wire.net)
		}
	} else if o.isDown[what] {
		nets = append(nets, w.regions[j].links[w.regions[i].name])
	}
	o.isDown[what] = !o.isDown[what]
	o.changedAt[what] = time.Now()
	for _, n := range nets {
		if n.heal(); o.isDown[what] {
			n.become(&n.lost, 1)
		}
	}
	for i := range 3 {
		j := (i + 1) % 3
		pair := pairOf(i, j)
		_, isCut := o.cutAt[pair]
		if cut := o.isDown[pair] || o.isDown[fmt.Sprint(i)] || o.isDown[fmt.Sprint(j)]; !cut && isCut {
			delete(o.cutAt, pair)
			o.healedAt[pair] = time.Now()
		} else if cut && !isCut {
			o.cutAt[pair] = time.Now()
		}
	}
}

// checkShown holds each node to what is down, and returns how many regions are lost.
//
// bubble: of the test.
func (w *world[S]) checkShown(o *outages) (losses int) {
	const slack, back = 300 * time.Millisecond, 8 * time.Second
	for i, r := range w.regions {
		for _, m := range r.nodes {
			up := int64(1)
			for _, s := range m.rep.RegionsStatus().Others {
				j := int(s.Region[1] - '0')
				pair := pairOf(i, j)
				at, isCut := o.cutAt[pair]
				healed := o.healedAt[pair]
				if s.Up {
					up++
				} else {
					losses++
				}
				switch {
				case s.Up != (s.Reason == ""):
					w.t.Errorf("a node of r%d shows %+v", i, s)
				case s.Up && isCut && o.quiet(i, j) > lostRegionAfter+slack:
					w.t.Errorf("a node of r%d shows %+v, which is cut off for %v", i, s, time.Since(at))
				case !s.Up && isCut && time.Since(at) < lostRegionAfter-3*time.Second && at.Sub(healed) > back, !s.Up && !isCut && time.Since(healed) > back:
					w.t.Errorf("a node of r%d shows %+v, which is well since %v", i, s, time.Since(healed))
				}
			}
			if heard, of := m.rep.Side(); heard != up || of != 3 {
				w.t.Errorf("a node of r%d shows %d regions as up, and divides by %d of %d", i, up, heard, of)
			}
		}
	}
	return losses
}
