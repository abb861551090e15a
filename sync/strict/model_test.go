package strict

import (
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
