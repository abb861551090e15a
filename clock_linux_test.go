package ratelimit

import "testing"

// On Linux the two clocks are there, and agree while the machine is awake.
func TestSuspendedDoesNotGrowWhileAwake(t *testing.T) {
	first, ok := suspended()
	if !ok {
		t.Fatal("Linux doesn't tell how long it was suspended")
	}
	for range 1000 {
		if now, _ := suspended(); now-first < -sleepNoise/2 {
			t.Fatalf("suspended() went from %v back to %v", first, now)
		}
	}
}
