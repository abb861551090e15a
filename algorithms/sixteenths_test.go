package algorithms

import (
	"testing"

	"pgregory.net/rapid"
)

// Whatever the clock does, each unit is in the sixteenth that it was put into, or in the newest
// where that is ahead; and what is kept is the newest.
func TestSixteenthsAreThoseOfTheirUnits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var u Sixteenths
		units := make(map[int64]int64) // by the number of the sixteenth
		steps := rapid.OneOf(rapid.Int64Range(-3, 3), rapid.Int64Range(-2*heldSixteenths, 2*heldSixteenths))
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			switch rapid.IntRange(0, 4).Draw(t, "event") {
			case 0, 1:
				age, n := rapid.Int64Range(0, heldSixteenths-1).Draw(t, "age"), rapid.Int64Range(0, 9).Draw(t, "n")
				u.Add(age, n)
				units[u.Newest-age] += n
			case 2, 3:
				newest := u.Newest + steps.Draw(t, "step")
				u.Advance(newest)
				ahead := int64(0)
				for at, n := range units {
					if at > newest {
						ahead += n
						delete(units, at)
					}
				}
				units[newest] += ahead
			case 4:
				most := rapid.Int64Range(0, 40).Draw(t, "most")
				u.Keep(most)
				for age := range int64(heldSixteenths) {
					kept := min(most, units[u.Newest-age])
					units[u.Newest-age], most = kept, most-kept
				}
			}
			for age, n := range u.N {
				if want := units[u.Newest-int64(age)]; n != want {
					t.Fatalf("%d units of age %d, want %d: %v", n, age, want, u)
				}
			}
			for at := range units {
				if at <= u.Newest-heldSixteenths {
					delete(units, at)
				}
			}
		}
	})
}
