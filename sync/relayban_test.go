//go:build chaos

package ratesync

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A ban is told to the other regions as how long it is and what is left of it, so that it ends
// when it should though the clocks of their Redises differ; after a loss there it is told again,
// and no region tells it back. A name that is told is that of a ban, or of counts.
func TestBansGoToOtherRegions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := calmWorld(t, false)
		here, there := w.regions[0], w.regions[1]
		there.store.step(10 * time.Minute)
		time.Sleep(time.Minute)
		register := new(ban.Register)
		register.Configure(1000, 0)
		m := here.nodes[0]
		b := ShareBans(register, m.source, "z", m.wire, "test", wallClock)
		id := keys.IDOf([]byte("a"))
		register.Begin(id, wallClock(), time.Hour)
		time.Sleep(3 * time.Second)
		key := b.keys.Of(id)
		rest := func(r *testRegion[algorithms.WindowState]) time.Duration {
			return max(0, r.store.expiry(key))
		}
		if got, want := rest(there), rest(here); want == 0 || (got-want).Abs() > time.Second {
			t.Errorf("%v of the ban are left in the other region, want %v", got, want)
		}
		if there.store.Do("ZSCORE", "test:3:{0}:told", key) != nil {
			t.Error("it is told back")
		}
		there.store.forget(0, true)
		time.Sleep(10 * time.Second)
		if got, want := rest(there), rest(here); (got - want).Abs() > time.Second {
			t.Errorf("after a loss %v of the ban are left in the other region, want %v", got, want)
		}
		b.Unshare(m.source)
		w.close()
	})
}

// Where bans grow and regions remember them for unequal times, each goes by its own: a ban that
// began elsewhere lets the next one grow only as long as it is remembered here. What one region
// remembers longer is known there after the other has forgotten it, and is not told to and fro.
func TestRegionsThatRememberBansForUnequalTimes(t *testing.T) {
	const length = time.Minute
	synctest.Test(t, func(t *testing.T) {
		w := calmWorld(t, false)
		id := keys.IDOf([]byte("a"))
		var bans []*Bans
		for i, memory := range []time.Duration{4 * length, 40 * length} {
			register := new(ban.Register)
			register.Configure(1000, memory)
			m := w.regions[i].nodes[0]
			bans = append(bans, ShareBans(register, m.source, "z", m.wire, "test", wallClock))
		}
		// next wants the next ban of each region to last so long. Since the last call it wants no
		// more messages than one that tells of a change, and one by which each region reads all.
		seen := int64(0)
		next := func(when string, want ...time.Duration) {
			t.Helper()
			time.Sleep(10 * time.Second)
			for i, b := range bans {
				if err := (&bansOut{bans: b, timeout: time.Second}).call(t.Context(), []ban.Message{b.Ask(id, wallClock())}); err != nil {
					t.Fatal(err)
				}
				if got := b.WouldBegin(id, wallClock(), length); got != want[i] {
					t.Errorf("%s the next ban of %s would last %v, want %v", when, w.regions[i].name, got, want[i])
				}
			}
			time.Sleep(10 * time.Second)
			now := w.messages()
			if now-seen > 3 {
				t.Errorf("%s regions have told each other of a ban %d times", when, now-seen)
			}
			seen = now
		}
		bans[0].Begin(id, wallClock(), length)
		next("while it lasts,", 0, 0)
		time.Sleep(2 * length)
		next("after the first,", 2*length, 2*length)
		time.Sleep(8 * length)
		next("when one has forgotten,", length, 2*length)
		next("and later,", length, 2*length)
		bans[1].Begin(id, wallClock(), length)
		next("while the second lasts,", 0, 0)
		time.Sleep(3 * length)
		next("after the second,", 4*length, 4*length)
		time.Sleep(8 * length)
		bans[0].Begin(id, wallClock(), length) // the region that has forgotten begins anew
		next("while the third lasts,", 0, 0)
		time.Sleep(2 * length)
		next("after the third,", 2*length, 2*length)
		time.Sleep(50 * length)
		next("in the end,", length, length)
		for i, b := range bans {
			b.Unshare(w.regions[i].nodes[0].source)
			if left := w.regions[i].store.Hash(b.keys.Of(id)); len(left) > 0 {
				t.Errorf("%s still has the ban: %v", w.regions[i].name, left)
			}
		}
		w.close()
	})
}
