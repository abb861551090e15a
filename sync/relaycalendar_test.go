package ratesync

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// At the end of a day, two regions have in the new one what both have admitted in it, to the
// request: nothing that was counted, refunded or reset across the end is missing there or too much.
// The clocks of the nodes are a minute apart, and those of the two Redis not at all or half a
// minute, either way.
func TestADayEndsInTwoRegions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ahead time.Duration
		cut   bool
	}{{0, false}, {0, true}, {30 * time.Second, false}, {-30 * time.Second, true}}[:redistest.Times(4, 4)] {
		t.Run(fmt.Sprintf("%v ahead, link cut %t", tt.ahead, tt.cut), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { dayEnds(t, tt.ahead, tt.cut) })
		})
	}
}

// A dayWorld is two regions, and what they admitted in each day.
type dayWorld struct {
	*world[algorithms.WindowState]
	days map[int64]map[string]int64 // by the number of a day and the key
}

// dayEnds has the second region's Redis be so far ahead, and the link between them be cut over the
// end of the day, or not.
//
// bubble: its test runs it in one.
func dayEnds(t *testing.T, ahead time.Duration, cut bool) {
	alg := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: algorithms.Day, Calendar: lisbon}
	w := &dayWorld{newWorld[algorithms.WindowState](t, 1, alg, 2), make(map[int64]map[string]int64)}
	w.skewed = true
	here, there := w.regions[0], w.regions[1]
	there.store.step(ahead)
	end := lisbon.At(wallClock()).End
	today, tomorrow := lisbon.At(wallClock()).Number, lisbon.At(end).Number
	w.until(end, -12*time.Hour-4*time.Minute)
	w.begin() // half a day and a minute
	w.all("plain", 3)
	w.all("reset", 4)
	w.all("late reset", 4)
	for range 9 {
		for i, r := range w.regions {
			w.by("override", r, i, 1, 5)
			time.Sleep(5 * time.Second)
		}
	}
	// A node that was idle decides on one request by what it knew.
	if n := w.days[today]["override"]; n < 5 || n > 6 {
		t.Errorf("by an override to 5, both regions admit %d of a day", n)
	}
	time.Sleep(10 * time.Second)
	w.compareDay("before the end", today, "plain", "reset", "late reset", "override")

	w.until(end, -800*time.Millisecond) // what is counted from here on is said after the end
	if cut {
		for _, r := range w.regions {
			link := r.links[w.other(r)]
			link.become(&link.lost, 1)
		}
	}
	last := w.all("plain", 5)
	w.forgive("reset", w.given(), here, there)
	w.all("reset", 6) // counts under the reset, until the day ends
	late := w.given()
	w.forgive("late reset", late, here)
	for range 8 {
		w.all("plain", 2)
		w.all("reset", 1)
		w.all("late reset", 1)
		time.Sleep(150 * time.Millisecond)
	}
	w.until(end, 700*time.Millisecond)
	w.forgive("late reset", late, there) // of the day before, for all that there knows
	w.refund("plain", last, 5)           // most of it of the day before
	for i := range 8 {
		w.by("override", here, i%2, 1, 5)
		w.by("override", there, i%2, 1, 5)
		time.Sleep(50 * time.Millisecond)
	}
	w.until(end, 45*time.Second) // by each Redis it is the next day
	w.healLinks()
	time.Sleep(20 * time.Second)
	w.compareDay("after the end", tomorrow, "plain", "reset", "late reset", "override")
	w.by("override", here, 1, 1, 5)
	w.by("override", there, 1, 1, 5)
	time.Sleep(10 * time.Second)
	for _, r := range w.regions {
		if w.by("override", r, 1, 1, 5) {
			t.Errorf("region %s admits more than 5 of the new day by an override: %d", r.name, w.days[tomorrow]["override"])
		}
	}
	w.refund("fresh", w.all("fresh", 7)[:1], 7)
	w.all("reset", 2)
	w.forgive("reset", w.given(), there, here)
	w.days[tomorrow]["reset"] = 0
	w.all("reset", 3)
	time.Sleep(20 * time.Second)
	w.compareDay("in the new day", tomorrow, "plain", "reset", "late reset", "fresh")
	w.close()
}

// until sleeps until so long after an instant.
//
// bubble: of dayEnds.
func (w *dayWorld) until(instant int64, after time.Duration) {
	time.Sleep(time.Duration(instant-wallClock()) + after)
}

// A takenBy is what a node has admitted.
type takenBy struct {
	m *member[algorithms.WindowState]
	table.Taken
}

// all has every node admit n.
func (w *dayWorld) all(raw string, n int64) (all []takenBy) {
	for _, r := range w.regions {
		for i, m := range r.nodes {
			all = append(all, takenBy{m, w.decide(raw, r, i, w.alg.Compile(), n)})
		}
	}
	return all
}

// refund gives n back of each.
func (w *dayWorld) refund(raw string, all []takenBy, n int64) {
	for _, x := range all {
		x.m.table.Refund(w.alg.Compile(), keys.KeyOf([]byte(raw)), x.Taken, n)
		w.days[lisbon.At(x.At).Number][raw] -= n
	}
}

// by has the i-th node of a region take n by another limit.
func (w *dayWorld) by(raw string, r *testRegion[algorithms.WindowState], i int, n, limit int64) bool {
	alg := w.alg
	alg.Limit = limit
	return w.decide(raw, r, i, alg.Compile(), n).Allowed
}

// decide has a node take n, and notes in which day that was.
func (w *dayWorld) decide(raw string, r *testRegion[algorithms.WindowState], i int, l algorithms.Limit, n int64) table.Taken {
	d := r.nodes[i].table.Take(l, keys.KeyOf([]byte(raw)), []byte(raw), wallClock()+int64(w.skew(i)), n, 0)
	if off := time.Duration(d.At - r.store.time().UnixNano()).Abs(); off > 50*time.Millisecond {
		w.t.Errorf("a node counts %v apart from its Redis", off)
	}
	if d.Allowed {
		day := lisbon.At(d.At).Number
		if w.days[day] == nil {
			w.days[day] = make(map[string]int64)
		}
		w.days[day][raw] += n
	}
	return d
}

// given is a reset that an operator gives now, by the first region's Redis.
func (w *dayWorld) given() reset.Reset {
	stamp := w.regions[0].store.time().UnixMicro()
	return reset.Reset{Stamp: stamp, At: stamp * 1000, Until: lisbon.At(stamp*1000).End + int64(time.Minute)}
}

// forgive has the nodes of regions apply the reset of a key.
func (w *dayWorld) forgive(raw string, given reset.Reset, regions ...*testRegion[algorithms.WindowState]) {
	for _, r := range regions {
		for i, m := range r.nodes {
			m.table.Reset(wallClock()+int64(w.skew(i)), &reset.Set{Keys: map[[16]byte]reset.Reset{keys.IDOf([]byte(raw)): given}})
		}
	}
}

// compareDay holds each store to what was admitted in a day.
func (w *dayWorld) compareDay(when string, day int64, names ...string) {
	w.t.Helper()
	for _, r := range w.regions {
		for _, raw := range names {
			cell := NewKeyspace("test").Cells(SpecOf("z", w.alg)).Of(keys.IDOf([]byte(raw)))
			got, want := totalsOf(r.store.Hash(cell)["sum"], 0)[day], w.days[day][raw]
			if got != want {
				w.t.Errorf("%s: region %s has %d of %q, want %d", when, r.name, got, raw, want)
			}
		}
	}
}
