package clock

import (
	"testing"
	"time"
)

func TestSuspendWatch(t *testing.T) {
	asleep, known := 5*time.Hour, true
	w := &suspendWatch{total: func() (time.Duration, bool) { return asleep, known }}
	var all time.Duration
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
		if all += w.since(); all != step.want {
			t.Errorf("after %v asleep: %v in all, want %v", step.asleep, all, step.want)
		}
	}
}
