package ratelimit

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// What the machine slept has passed: what was counted before it has aged, whatever the algorithm.
func TestSuspendedTimeHasPassed(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, &App{}, zoneBlock("slept", "limit 5/1m\nalgorithm "+algorithm))
			defer s.end()
			before := clock()
			s.admits("1.2.3.4", 6, 5)
			origin.Add(int64(time.Hour))
			defer origin.Add(-int64(time.Hour))
			if passed := clock() - before; passed != int64(time.Hour) {
				t.Errorf("%s: the clock went on by %v, want an hour", algorithm, time.Duration(passed))
			}
			s.admits("1.2.3.4", 6, 5) // no more than one limit for the whole time
		})
	}
}

func TestSleepWatch(t *testing.T) {
	asleep, known := 5*time.Hour, true
	w := &sleepWatch{suspended: func() (time.Duration, bool) { return asleep, known }}
	var total atomic.Int64
	for _, step := range []struct {
		asleep time.Duration
		known  bool
		want   time.Duration
	}{
		{5 * time.Hour, true, 0}, // before this process began
		{5*time.Hour + time.Millisecond, true, 0},
		{5*time.Hour + 3*time.Second, true, 3 * time.Second},
		{5*time.Hour + 3*time.Second, true, 3 * time.Second},
		{0, false, 3 * time.Second},
		{4 * time.Hour, true, 3 * time.Second}, // it can't have slept less
		{6*time.Hour + 3*time.Second, true, time.Hour + 3*time.Second},
	} {
		asleep, known = step.asleep, step.known
		if w.look(&total); time.Duration(total.Load()) != step.want {
			t.Errorf("after %v asleep: %v in all, want %v", step.asleep, time.Duration(total.Load()), step.want)
		}
	}
}
