package scenario

import (
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// Costs up to a hundredth of the limit are admitted as by one counter. A lump that a node admits
// unseen by the others is what limits of any model exceed; Tide does so by no more than Kong's.
func TestLumpsBetweenTwoSyncs(t *testing.T) {
	of := func(k algorithms.Kind) algorithms.Params {
		return algorithms.Params{Kind: k, Limit: 100_000, Window: time.Minute}
	}
	middle := func(f func(seed uint64) float64) float64 {
		var all []float64
		for seed := range uint64(5) {
			all = append(all, f(seed))
		}
		slices.Sort(all)
		return all[2]
	}
	for _, c := range EachCosts() {
		over := middle(func(seed uint64) float64 {
			peak, exact, _, _ := CostPeaks[algorithms.WindowState](c, of(algorithms.SlidingWindow), Shipped, 10, 5, seed)
			return peak - exact
		})
		// Each node may admit one lump before it hears of the others'.
		within(t, c.Name+": window, beyond one counter", over, -.05, .05+10*c.Mean)
		if c.Mean <= .01 {
			within(t, c.Name+": window, beyond one counter", over, -.05, .06)
			log := middle(func(seed uint64) float64 {
				peak, _, _, _ := CostPeaks[algorithms.LogState](c, of(algorithms.SlidingLog), Shipped, 10, 5, seed)
				return peak
			})
			within(t, c.Name+": log", log, .9, 1.1)
			bucket := middle(func(seed uint64) float64 {
				peak, exact, _, _ := CostPeaks[algorithms.BucketState](c, of(algorithms.TokenBucket), Shipped, 10, 5, seed)
				return peak - exact
			})
			within(t, c.Name+": bucket, beyond one counter", bucket, -.05, .06)
		}
		kong := middle(func(seed uint64) float64 {
			peak, exact, _, _ := CostPeaks[algorithms.WindowState](c, of(algorithms.SlidingWindow), Kong, 10, 5, seed)
			return peak - exact
		})
		within(t, c.Name+": window, beyond Kong's model", over-kong, -2, .03)
		below := middle(func(seed uint64) float64 {
			_, _, denied, exact := CostPeaks[algorithms.WindowState](c, of(algorithms.SlidingWindow), Shipped, 10, .8, seed)
			return denied - exact
		})
		if c.Mean <= .05 {
			within(t, c.Name+": denied below the limit, beyond one counter", below, -.02, .005)
		}
	}
}
