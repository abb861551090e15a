package simulate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// Hashes are counted exactly up to a bound, and nearly beyond it.
func TestDistinct(t *testing.T) {
	for _, n := range []int{0, 1, 1000, ExactClients, 10 * ExactClients} {
		var d distinct
		rng := rand.New(rand.NewPCG(1, 2))
		for range n {
			h := rng.Uint64()
			d.Add(h)
			d.Add(h)
		}
		off := math.Abs(float64(d.Count()) - float64(n))
		if n <= ExactClients && off > 0 || off > .02*float64(n) || len(d.set) > ExactClients {
			t.Errorf("of %d hashes %d are counted, and %d held", n, d.Count(), len(d.set))
		}
	}
}

// The keys with the most denials are found among many, and counted exactly where there are few.
func TestHeavyHitters(t *testing.T) {
	var few, many heavyHitters
	rng := rand.New(rand.NewPCG(1, 2))
	add := func(h *heavyHitters, key int) {
		h.Add(uint64(key), func() string { return fmt.Sprint(key) })
	}
	for range 100_000 {
		add(&few, rng.IntN(maxTop))
		add(&many, 100+rng.IntN(100_000))
		if rng.IntN(10) == 0 {
			add(&many, 7)
		}
	}
	sum := int64(0)
	for _, h := range few.All {
		sum += h.Count - h.Over
	}
	if top := many.Top(3); sum != 100_000 || top[0].Value != "7" || top[0].Count-top[0].Over < 9000 || len(many.All) > maxTop {
		t.Errorf("%d denials of few keys, and of many %+v", sum, top)
	}
}

// A timeline keeps every request, however long it gets.
func TestTimeline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tl timeline
		at, n, denied := rapid.Int64Range(0, 2e18).Draw(t, "begin"), int64(0), int64(0)
		for range rapid.IntRange(1, 300).Draw(t, "requests") {
			at += rapid.SampledFrom([]int64{0, 1e6, 1e9, 1e12, 1e15}).Draw(t, "gap")
			over := rapid.Bool().Draw(t, "denied")
			tl.Add(at, over)
			if n++; over {
				denied++
			}
		}
		_, _, requests, over := tl.Counts()
		sum := func(all []int64) (s int64) {
			for _, x := range all {
				s += x
			}
			return s
		}
		if sum(requests) != n || sum(over) != denied || len(requests) > bins {
			t.Fatalf("%d of %d requests, %d of %d denied", sum(requests), n, sum(over), denied)
		}
	})
}
