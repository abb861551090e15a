package behaviour_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// What the machine slept has passed: what was counted before it has aged, whatever the algorithm.
func TestSuspendedTimeHasPassed(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"} {
		synctest.Test(t, func(t *testing.T) {
			s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("slept", "limit 5/1m\nalgorithm "+algorithm))
			defer s.End()
			before := clock.Now()
			s.Admits("1.2.3.4", 6, 5)
			clock.Advance(time.Hour)
			defer clock.Advance(-time.Hour)
			if passed := clock.Now() - before; passed != int64(time.Hour) {
				t.Errorf("%s: the clock went on by %v, want an hour", algorithm, time.Duration(passed))
			}
			s.Admits("1.2.3.4", 6, 5) // no more than one limit for the whole time
		})
	}
}
