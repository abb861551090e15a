// What was spent in a window, by sixteenths of it: what a log knows of other nodes, of which it
// does not know the instants.

package algorithms

import "github.com/caddy-tide/ratelimit/internal/saturate"

// heldSixteenths is 16 and the one that is partly in the window.
const heldSixteenths = 17

// Sixteenths are the units that were spent, by sixteenths of the window: N[age] in the sixteenth
// age before Newest. A sixteenth can be negative: a refund lowers the sixteenths before it, the
// newest first.
type Sixteenths struct {
	Newest int64
	N      [heldSixteenths]int64
}

// SixteenthOf is the length of a sixteenth.
func SixteenthOf(window int64) int64 { return (window + 15) / 16 }

// IsZero reports whether nothing is counted.
func (u *Sixteenths) IsZero() bool { return u.N == [heldSixteenths]int64{} }

// Add adds n units to the sixteenth of an age.
func (u *Sixteenths) Add(age, n int64) { u.N[age] = saturate.Add(u.N[age], n) }

// Advance makes sixteenth the newest. Sixteenths that are newer, after a step of the clock, are put
// into it.
func (u *Sixteenths) Advance(sixteenth int64) {
	ahead := sixteenth - u.Newest
	switch {
	case ahead == 0:
		return
	case ahead >= heldSixteenths:
		u.N = [heldSixteenths]int64{}
	case ahead > 0:
		copy(u.N[ahead:], u.N[:])
		clear(u.N[:ahead])
	case ahead <= -heldSixteenths:
		u.N = [heldSixteenths]int64{sumOf(u.N[:])}
	default:
		var n [heldSixteenths]int64
		n[0] = sumOf(u.N[:1-ahead])
		copy(n[1:], u.N[1-ahead:])
		u.N = n
	}
	u.Newest = sixteenth
}

func sumOf(ns []int64) (sum int64) {
	for _, n := range ns {
		sum = saturate.Add(sum, n)
	}
	return sum
}

// Keep leaves at most so many units, the newest.
func (u *Sixteenths) Keep(most int64) {
	over := sumOf(u.N[:]) - most
	for age := heldSixteenths - 1; age >= 0 && over > 0; age-- {
		less := min(over, max(0, u.N[age]))
		u.N[age] -= less
		over -= less
	}
}
