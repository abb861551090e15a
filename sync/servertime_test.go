package ratesync

import (
	"testing"
	"time"
)

// What takes long once, such as a first call with its connection, is not the way to the server. A
// way that has become longer is known after three readings.
func TestRoundTripIsTheShortestOfTheLastThree(t *testing.T) {
	var c serverClock
	if got := c.RoundTrip(); got != 0 {
		t.Errorf("%v before the first reading, want 0", got)
	}
	for i, step := range []struct{ took, want time.Duration }{
		{400, 400}, {100, 100}, {900, 100}, {120, 100}, {300, 120}, {300, 120}, {300, 300}, {40, 40},
	} {
		c.Read(0, 0, int64(step.took*time.Millisecond))
		if got := c.RoundTrip(); got != step.want*time.Millisecond {
			t.Errorf("reading %d took %v: RoundTrip = %v, want %v", i, step.took*time.Millisecond, got, step.want*time.Millisecond)
		}
	}
}
