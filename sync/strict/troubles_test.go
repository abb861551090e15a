package strict

import (
	"context"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// In each trouble a request gets an error and not a decision, and when it has passed Redis decides
// again.
func TestTroublesPass(t *testing.T) {
	for _, c := range redistest.Troubles() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			r, url := c.Server(t)
			s, many := limiter(t, url), kinds["token bucket"]
			many.Limit = 1 << 20 // a denial writes nothing, and fails at nothing
			take(t, s, "z", id(1), many)
			end := c.Begin(t, r)
			try := func() error {
				_, _, err := s.Take(context.Background(), "z", []algorithms.Params{many}, id(1), 1, nil)
				return err
			}
			redistest.Eventually(t, "Redis doesn't decide, and it is known why", func() bool {
				err := try()
				return err != nil && strings.Contains(redisconn.Classify(err), c.Code)
			})
			if full := c.Code == "OOM" || c.Code == "NOREPLICAS"; full && !s.Down() {
				t.Error("the circuit is closed, want it open")
			}
			end()
			redistest.Eventually(t, "all is well", func() bool { return !s.Down() })
			take(t, s, "z", id(1), many)
		})
	}
}
