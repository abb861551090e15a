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
// bubble: onALine runs it in one.
func TestWhatAStepOfTheServersClockGives(t *testing.T) {
	for name, k := range kinds {
		for _, reserves := range []bool{false, true} {
			if k.Kind == algorithms.LeakyBucket && reserves {
				continue // count_responses doesn't go with it
			}
			beyond := 5 // of a step that ends the key: a node says the level of its bucket again
			if k.Kind.Traits().Draining {
				beyond = 0
			}
			rule := algorithms.Params{Kind: k.Kind, Limit: 5, Window: time.Minute, Queue: 4, Reserves: reserves}
			for _, step := range []struct {
				by   time.Duration
				want int
			}{
				{2 * time.Minute, 5}, {time.Hour, beyond}, {-time.Hour, 0}, {20 * time.Second, 1}, {-20 * time.Second, 0},
			} {
				onALine(t, time.Second, func(t *testing.T, l *line, s *Limiter) {
					time.Sleep(30 * time.Second)
					if got := drain(t, s, "z", id(1), rule); got != 5 {
						t.Fatalf("%s: %d are admitted, want 5", name, got)
					}
					l.step(step.by)
					if more := drain(t, s, "z", id(1), rule); more != step.want {
						t.Errorf("%s, reserves %v, a step of %s: %d more, want %d", name, reserves, step.by, more, step.want)
					}
				})
			}
		}
	}
}

// After a failover to a server whose clock is behind, nobody waits for longer than a window.
//
// bubble: onALine runs it in one.
func TestClockOfRedisStepsBack(t *testing.T) {
	for name, rule := range cellsOf(100, time.Minute) {
		onALine(t, time.Second, func(t *testing.T, l *line, s *Limiter) {
			drain(t, s, "z", id(1), rule)
			l.step(-time.Hour)
			for range 20 {
				take(t, s, "z", id(1), rule)
			}
			// A full window, and a window with sub-windows forgets in two.
			l.step(-time.Hour + 2*time.Minute)
			if g, all := take(t, s, "z", id(1), rule); !g.Admitted() {
				t.Errorf("%s: %+v two minutes after the clock stepped back", name, all[0].Decision)
			}
		})
	}
}
