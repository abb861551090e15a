package strict

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long Redis has for an answer, and a limiter to end, where no test is about that:
// a machine may stall.
const patience = 20 * time.Second

// Close is CloseBy in so long.
//
// no clock: it ends as soon as nothing is under way.
func (s *Limiter) Close() { s.CloseBy(time.Now().Add(patience)) }

// Down reports whether some part of Redis is known not to answer.
func (s *Limiter) Down() bool { return s.Status().Open > 0 }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Penalize charges a request, as its key's queue does for one that Redis denied.
func (s *Limiter) Penalize(g Grant) {
	if g.ruleset != nil {
		s.change(g, nil, func(q *queue) { q.correct(correction{op: penalty, n: 1, at: g.at}, inAll) })
	}
}
