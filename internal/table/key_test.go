package table

import (
	"testing"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

// Keys that agree in half of their 128 bits have counts of their own, also where they stand in one
// slot of the index.
func TestKeysThatNearlyMeetAreApart(t *testing.T) {
	tab := newTable(100, hour)
	first := keys.KeyOf([]byte("first"))
	for i := range 8 {
		other := first
		other.B += uint64(i)
		if i >= 4 {
			other.A += uint64(i) << 40 // the low half, by which the index looks, is the same
			other.B = first.B
		}
		for n := range hour.Limit + 1 {
			if got := tab.Take(hour.Compile(), other, raw(i), t0, 1, allWaits).Allowed; got != (n < hour.Limit) {
				t.Errorf("key %d, request %d: admitted %t", i, n+1, got)
			}
		}
	}
}
