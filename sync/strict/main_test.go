package strict

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

const closeTime = 2 * time.Second

// Close is CloseBy in closeTime.
func (s *Limiter) Close() { s.CloseBy(time.Now().Add(closeTime)) }

// Down reports whether some part of Redis is known not to answer.
func (s *Limiter) Down() bool { return s.Status().Open > 0 }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Penalize charges a request, as its key's queue does for one that Redis denied.
func (s *Limiter) Penalize(g Grant) {
	if g.ruleset != nil {
		s.correct(g, correction{op: penalty, n: 1, at: g.at})
	}
}
