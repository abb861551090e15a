package strict

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A call whose reply is lost, or comes late, is no loss of Redis where a probe is answered: its
// requests ask again, and count once.
func TestLateCallDoesNotOpenTheCircuit(t *testing.T) {
	for name, rule := range kinds {
		t.Run(name, func(t *testing.T) {
			onALine(t, 300*time.Millisecond, func(t *testing.T, l *line, s *Limiter) {
				take(t, s, name, id(1), rule)
				before := s.Status()
				l.set(faultproxy.DropReplies)
				go func() {
					redistest.Poll(time.Minute, func() bool { _, dropped := l.counts(); return dropped > 0 })
					l.set(faultproxy.None)
				}()
				g, _ := take(t, s, name, id(1), rule)
				if st := s.Status(); !g.Admitted() || st.Trips > before.Trips || st.Timeouts > before.Timeouts {
					t.Errorf("admitted %v after a reply that was lost, and %+v, want no trip", g.Admitted(), st)
				}
				if got := drain(t, l.other(t), name, id(1), rule); got != 98 {
					t.Errorf("%d admitted after two, want 98", got)
				}
			})
		})
	}
}
