//go:build chaos

package ratesync

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

// Clocks of two regions that are 31 s apart, whichever is ahead, lose nothing, deny nobody that has
// room, and part no region from the other: messages are numbered by the clock of who reads.
func TestClocksOfRegionsAreApart(t *testing.T) {
	for _, ahead := range []time.Duration{31 * time.Second, -31 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w := calmWorld(t, false)
			w.names = w.names[:1]
			here, there := w.regions[0], w.regions[1]
			there.store.step(ahead)
			raw := []byte(w.names[0])
			for range 20 {
				for _, r := range w.regions {
					if d := r.nodes[0].table.Take(w.alg.Compile(), keys.KeyOf(raw), raw, wallClock(), 1, 0); !d.Allowed {
						t.Error("a request is denied")
					}
					id := keys.IDOf(raw)
					w.own[string(id[:])]++
				}
				time.Sleep(time.Second)
			}
			time.Sleep(10 * time.Second)
			w.compare()
			if a, b := told(here, there), told(there, here); a != 20 || b != 20 {
				t.Errorf("%v ahead: the regions have told each other of %d and %d, want 20", ahead, a, b)
			}
			for _, r := range w.regions {
				for _, m := range r.nodes {
					if s := m.rep.RegionsStatus().Others[0]; !s.Up || s.Backlog > 0 || s.Lag > 3 {
						t.Errorf("%v ahead: a node of %s shows %+v", ahead, r.name, s)
					}
				}
			}
			w.close()
		})
	}
}

// Many keys below the threshold cost no message between regions, and leave no name in
// told.
func TestManyKeysBelowTheThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := calmWorld(t, false)
		here := w.regions[0]
		for _, m := range here.nodes {
			m.source.Tell(3)
		}
		before := w.messages()
		for i := range 900 {
			raw := []byte{byte(i), byte(i >> 8), 'k'}
			here.nodes[0].table.Take(w.alg.Compile(), keys.KeyOf(raw), raw, wallClock(), 2, 0)
		}
		time.Sleep(time.Minute)
		if counts, names := len(here.store.counting()), here.store.Do("ZCOUNT", "test:3:{0}:told", "-inf", "+inf").(int64); counts != 900 || names != 0 {
			t.Errorf("%d keys are counted, %d told, want 900 and none", counts, names)
		}
		if n := w.messages() - before; n != 0 {
			t.Errorf("%d messages for keys below the threshold", n)
		}
		w.close()
	})
}
