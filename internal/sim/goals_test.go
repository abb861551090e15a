package sim

import (
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// What Tide was built to reach, in small. Kong's model reaches none of it.
func TestGoalsAreReachedAndNotByKongsModel(t *testing.T) {
	const overloads = 6 // the first ones, which are about admitting too much
	for i, g := range Goals() {
		if redistest.Raced && i%3 != 0 {
			continue // see everyClasses
		}
		switch {
		case i < overloads:
			if got := g.Measure(Kong, 1); got.Met {
				t.Errorf("%s: Kong's model reaches %s, so that says nothing: %s", g.Name, g.Reach, got.Text)
			}
		case i < overloads+2:
			continue // all kinds of clusters take their time; the next test has a few
		}
		if got := g.Measure(g.Model, 3); !got.Met {
			t.Errorf("%s: %s, want %s", g.Name, got.Text, g.Reach)
		}
	}
}

// An estimate that held back too much would deny what the limit has room for.
func TestBelowTheLimitNoneIsDenied(t *testing.T) {
	few := []cluster{{2, sec}, {5, sec / 10}, {10, 5 * sec}}
	for _, c := range []struct {
		limits []int64
		most   float64
	}{{[]int64{400}, 0}, {[]int64{50}, .01}} {
		if got := below(c.limits, few, c.most)(Shipped, 3); !got.Met {
			t.Errorf("limits %v: %s denied than by the centralized limiter, want at most %g %%", c.limits, got.Text, 100*c.most)
		}
	}
}

// Each client of many, each node of those that are there, and each shape of traffic is held to the
// limit, and hardly any is denied that should not be.
func TestShapesOfTraffic(t *testing.T) {
	for _, c := range Traffics() {
		f := c.Figures(Shipped, 1)
		within(t, c.Name+": peak by the exact one", f.PeakOver, .97, 1.06)
		within(t, c.Name+": mean by the exact one", f.MeanOver, .97, 1.03)
		within(t, c.Name+": share denied more than by the centralized limiter", f.DeniedOver, -.02, .02)
	}
}
