package strict

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// What a step of the server's clock gives a client that has spent its limit of 5 in a minute, as
// the documentation has it: a step ahead counts as time that has passed, and a step back gives logs
// and buckets nothing. Another server whose clock is ahead or behind does the same after a
// failover.
//
// no clock: Redis goes by the time that the test sets.
func TestWhatAStepOfTheServersClockGives(t *testing.T) {
	v := newVirtual(t)
	start := v.now / 60e6 * 60e6 // a minute begins
	for name, k := range kinds {
		for _, reserves := range []bool{false, true} {
			if k.Kind == algorithms.LeakyBucket && reserves {
				continue // count_responses doesn't go with it
			}
			rule := Rule{Kind: k.Kind, Limit: 5, Window: time.Minute, Queue: 4, Reserves: reserves}
			for _, step := range []struct {
				by   time.Duration
				want int
			}{
				{time.Hour, 5}, {-time.Hour, 0}, {20 * time.Second, 1}, {-20 * time.Second, 0},
			} {
				zone := name + step.by.String()
				if reserves {
					zone += "r"
				}
				v.use(zone, rule)
				v.set(start + 30e6)
				for range 5 {
					if g, all := take(t, v.Limiter, zone, id(1), rule); !g.Admitted() {
						t.Fatalf("%s: %+v", zone, all[0].Decision)
					}
				}
				if g, _ := take(t, v.Limiter, zone, id(1), rule); g.Admitted() {
					t.Fatalf("%s: a sixth one is admitted", zone)
				}
				v.set(v.now + step.by.Microseconds())
				more := 0
				for range 20 {
					if g, _ := take(t, v.Limiter, zone, id(1), rule); g.Admitted() {
						more++
					}
				}
				if more != step.want {
					t.Errorf("%s, reserves %v, a step of %s: %d more, want %d", name, reserves, step.by, more, step.want)
				}
			}
		}
	}
}
