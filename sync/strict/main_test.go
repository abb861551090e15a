package strict

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// patience is how long Redis has for an answer, and a limiter to end, where no test is about that:
// a machine may stall.
const patience = 20 * time.Second

// Close is CloseBy in so long, and the end of the tables that tests ask by.
//
// no clock: it ends as soon as nothing is under way.
func (s *Limiter) Close() {
	s.CloseBy(time.Now().Add(patience))
	if x, ok := tablesOf.Load(s); ok {
		x.(*tables).end()
	}
}

// Down reports whether some part of Redis is known not to answer.
func (s *Limiter) Down() bool { return s.Status().Open > 0 }

// settles waits until a limiter has nothing more to send.
func settles(t *testing.T, s *Limiter) {
	t.Helper()
	redistest.Eventually(t, "nothing is to be sent", func() bool { return !s.tables().unsent() && !s.Down() })
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
