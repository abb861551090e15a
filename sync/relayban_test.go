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
