package strict

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// model is an algorithm with its state.
type model interface {
	takeSome(now, n int64) algorithms.Decision
	refund(taken, n int64)
}

type modelOf[S any] struct {
	algorithms.Machine[S]
	limit algorithms.Limit
	state S
}

func (m *modelOf[S]) takeSome(now, n int64) (d algorithms.Decision) {
	want := allWaits
	if d.Result = m.Take(&m.state, m.limit, now, n, 0); !d.Allowed {
		want |= algorithms.WantRetry
	}
	d.Waits = m.Waits(&m.state, m.limit, now, n, 0, want)
	return d
}

func (m *modelOf[S]) refund(taken, n int64) { m.Refund(&m.state, m.limit, taken, n) }

func modelFor(r algorithms.Params) model {
	switch k := r.Kind; {
	case k.Traits().Windowed:
		return newModel[algorithms.WindowState](r)
	case k.Traits().Draining:
		return newModel[algorithms.BucketState](r)
	}
	return newModel[algorithms.LogState](r)
}

func newModel[S any](r algorithms.Params) model {
	return &modelOf[S]{Machine: algorithms.MachineBy[S](r.Kind, r.Calendar), limit: r.Compile()}
}

// near compares waits: a script has microseconds, an algorithm nanoseconds.
func near(got, want time.Duration) bool {
	return got-want > -time.Microsecond && got-want <= 2*time.Microsecond || got == want
}

func same(got, want algorithms.Decision) bool {
	return got.Allowed == want.Allowed && got.Remaining == want.Remaining && near(got.Retry, want.Retry) &&
		near(got.Next, want.Next) && near(got.Reset, want.Reset) && near(got.Delay, want.Delay)
}

// Whoever waits for Retry is admitted, and two microseconds earlier not.
func TestRetryAfterFromBothSides(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, rule := range kinds {
		for range 3 {
			rule.Window = time.Duration(random.Int64N(int64(time.Hour)/1000))*time.Microsecond + 100*time.Millisecond
			rule.Limit = random.Int64N(20) + 1
			rule.Burst, rule.Queue = random.Int64N(20), random.Int64N(5)
			onALine(t, time.Second, func(t *testing.T, l *line, s *Limiter) {
				for range 3 {
					d := algorithms.Decision{Result: algorithms.Result{Allowed: true}}
					for d.Allowed {
						_, all := take(t, s, name, id(1), rule)
						d = all[0].Decision
					}
					wait := (d.Retry + time.Microsecond - 1).Truncate(time.Microsecond)
					time.Sleep(wait - 2*time.Microsecond) // virtual time
					if _, all := take(t, s, name, id(1), rule); all[0].Allowed {
						t.Fatalf("%s %+v: admitted 2 µs before the %s that Retry was", name, rule, d.Retry)
					}
					time.Sleep(2 * time.Microsecond) // virtual time
					if _, all := take(t, s, name, id(1), rule); !all[0].Allowed {
						t.Fatalf("%s %+v: denied after the %s that Retry was: %+v", name, rule, d.Retry, all[0].Decision)
					}
				}
			})
		}
	}
}
