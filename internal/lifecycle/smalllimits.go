package lifecycle

import (
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

const (
	// smallFor is how many seconds in a row there must be several nodes before a limit is said to
	// be small for them: for a while, a node that was replaced counts as one.
	smallFor = 30
	// smallPerNode is what each node should have of a limit that syncs at an interval: with less,
	// what the nodes admit before they hear of each other shows.
	smallPerNode = 20
)

// smallLimits is what is known of limits that are small for the nodes. Only the goroutine that
// keeps house uses it.
type smallLimits struct {
	seconds int // in a row that there were several nodes
	told    []string
}

// checkSmallLimits warns once of each zone that syncs at an interval and has a limit that is small
// for so many nodes. It is to be called every second.
func (c *Config) checkSmallLimits(nodes int64) {
	if c.small.seconds++; nodes < 2 {
		c.small.seconds = 0
	}
	if c.small.seconds < smallFor || c.Once.IsQuiet(warning.SmallLimit) {
		return
	}
	for _, z := range c.zones {
		if slices.Contains(c.small.told, z.Name) {
			continue
		}
		if n, ok := smallestOf(z); ok && n < smallPerNode*nodes {
			c.small.told = append(c.small.told, z.Name)
			pass := n + nodes - 1
			c.Logger.Warn(fmt.Sprintf("zone %q: with %d nodes, a limit of %d may let %d requests of a client through, and more of a burst, as each further node may admit one before it hears of the others; write sync_rate strict, which is exact", z.Name, nodes, n, pass),
				warning.Field(warning.SmallLimit), zap.String("zone", z.Name), zap.Int64("limit", n), zap.Int64("nodes", nodes), zap.Int64("may_admit", pass))
		}
	}
}

// smallestOf returns the smallest limit of a zone that syncs at an interval and denies somebody.
func smallestOf(z *limits.Zone) (n int64, ok bool) {
	if z.Redis == nil || z.SyncRate <= 0 || z.Enforcement().IsOff() {
		return 0, false
	}
	for _, r := range z.Limits {
		if r.Limit > 0 && (!ok || r.Limit < n) {
			n, ok = r.Limit, true
		}
	}
	return n, ok
}
