//go:build chaos

package behaviour_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A node that starts knows what is spent before it has admitted more than two requests that come 10
// ms apart, and the time of some calls to Redis on this machine. The requests come as soon as the
// app has started.
func TestASpentKeyAtThePaceOfANodesStart(t *testing.T) {
	r := redistest.Start(t)
	client := r.Client()
	defer client.Close()
	for name, options := range startAlgorithms {
		s := startsWith(t, r, name, "")
		for range 20 {
			s.Get("1.2.3.4")
		}
		s.End()
		for start := range 20 {
			s := startsWith(t, r, name, "")
			more := 0
			for range 10 {
				if s.Get("1.2.3.4").Status == http.StatusOK {
					more++
				}
				redistest.Pause(10 * time.Millisecond)
				for range 5 {
					client.Ping(t.Context())
				}
			}
			s.End()
			if more > 2 {
				t.Errorf("%s, start %d: %d of 10 are admitted of a key that is spent, want 2 at most", options, start, more)
			}
		}
	}
}
