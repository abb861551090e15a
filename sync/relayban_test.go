//go:build chaos

package ratesync

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// withBan runs a test in a calm world where a node of the first region bans a key for an hour when
// begin is called, and holds what is left of it in the second one.
func withBan(
	t *testing.T, test func(w *windowWorld, here, there *windowRegion, key string, begin func(), left func(string, time.Duration)),
) {
	inCalmWorld(t, false, func(t *testing.T, w *windowWorld, here, there *windowRegion) {
		register, m, id := new(ban.Register), here.nodes[0], keys.IDOf([]byte("a"))
		register.Configure(1000, 0)
		b := SyncBans(register, m.source, "z", m.wire, "test", wallClock)
		key := b.keys.Of(id)
		test(w, here, there, key, func() { register.Begin(id, wallClock(), time.Hour) }, func(when string, want time.Duration) {
			t.Helper()
			if got := max(0, there.store.expiry(key)); (got-want).Abs() > time.Second || (got == 0) != (want == 0) {
				t.Errorf("%s: %v of the ban are left in the other region, want %v", when, got, want)
			}
		})
		b.Unshare(m.source)
	})
}

// A ban is told to the other regions as how long it is and what is left of it, so that it ends
// when it should though the clocks of their Redises differ; after a loss there it is told again,
// and no region tells it back. A name that is told is that of a ban, or of counts.
func TestBansGoToOtherRegions(t *testing.T) {
	withBan(t, func(w *windowWorld, here, there *windowRegion, key string, begin func(), left func(string, time.Duration)) {
		there.store.step(10 * time.Minute)
		time.Sleep(time.Minute)
		begin()
		time.Sleep(3 * time.Second)
		left("after the beginning", here.store.expiry(key))
		if there.store.Do("ZSCORE", "test:3:{0}:told", key) != nil {
			w.t.Error("it is told back")
		}
		there.store.forget(0, true)
		time.Sleep(10 * time.Second)
		left("after a loss", here.store.expiry(key))
	})
}

// A ban that began while a link was silent is read when it is back, with what is left of it.
func TestABanOverASilentLink(t *testing.T) {
	withBan(t, func(_ *windowWorld, here, there *windowRegion, key string, begin func(), left func(string, time.Duration)) {
		link := there.links["r0"]
		link.become(&link.lost, 1)
		time.Sleep(time.Second) // what was under way has arrived
		begin()
		time.Sleep(20 * time.Minute)
		left("over a silent link", 0)
		link.heal()
		time.Sleep(10 * time.Second)
		left("over a link that is back", here.store.expiry(key))
	})
}

// A ban of another region that a Redis loses by a failover comes again, as how far was read lies
// beside it.
func TestABanThatWasAnsweredJustBeforeAFailover(t *testing.T) {
	withBan(t, func(w *windowWorld, here, there *windowRegion, key string, begin func(), left func(string, time.Duration)) {
		behind := there.store.Values()
		begin()
		time.Sleep(2 * time.Second)
		left("before the failover", here.store.expiry(key))
		there.store.restore(behind)
		left("at the failover", 0)
		w.breakLinks(there)
		time.Sleep(10 * time.Second)
		left("after it", here.store.expiry(key))
	})
}

// Where bans grow and regions remember them for unequal times, each goes by its own: a ban that
// began elsewhere lets the next one grow only as long as it is remembered here. What one region
// remembers longer is known there after the other has forgotten it, and is not told to and fro.
func TestRegionsThatRememberBansForUnequalTimes(t *testing.T) {
	const length = time.Minute
	inCalmWorld(t, false, func(t *testing.T, w *windowWorld, _, _ *windowRegion) {
		id := keys.IDOf([]byte("a"))
		var bans []*Bans
		for i, memory := range []time.Duration{4 * length, 40 * length} {
			register := new(ban.Register)
			register.Configure(1000, memory)
			m := w.regions[i].nodes[0]
			bans = append(bans, SyncBans(register, m.source, "z", m.wire, "test", wallClock))
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
	})
}
