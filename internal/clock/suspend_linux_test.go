package clock

import (
	"testing"
	"time"
)

// On Linux the two clocks are there, and agree while the machine is awake.
func TestSuspendedDoesNotGrowWhileAwake(t *testing.T) {
	var least, most time.Duration
	known := 0
	for range 1000 {
		now, ok := suspended()
		if !ok {
			continue // the machine is too busy to measure it
		}
		if known++; known == 1 {
			least, most = now, now
		}
		least, most = min(least, now), max(most, now)
	}
	if known == 0 {
		t.Fatal("Linux doesn't report how long it was suspended")
	}
	if most-least >= suspendNoise {
		t.Errorf("suspended() says between %v and %v while awake", least, most)
	}
}
