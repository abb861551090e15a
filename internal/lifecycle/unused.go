package lifecycle

import (
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// checkRuntime tells, once the control record is known, what was set at run time before this
// configuration started and may surprise: overrides of a zone that the configuration doesn't have,
// as it may have been renamed, and zones that are not enforced. It is to be called every second.
func (c *Config) checkRuntime() {
	if c.checked || c.Control().IsShared() && !c.Control().IsEqual() {
		return
	}
	c.checked = true
	zones := c.Control().OverridesByZone()
	for _, name := range slices.Sorted(maps.Keys(zones)) {
		if c.zone(name) == nil && !c.Once.IsQuiet(warning.UnusedOverrides) {
			c.Logger.Warn(fmt.Sprintf("the overrides of zone %q, %d in all, have no effect here, as the configuration doesn't have that zone; if other nodes have it, all is well, and if it was renamed, set them for its new name, and then remove these by `caddy rate-limit override '%[1]s' --file /dev/null --replace --force`", name, zones[name]),
				warning.Field(warning.UnusedOverrides), zap.String("zone", name))
		}
	}
	names := []string{""} // all zones
	for _, z := range c.zones {
		names = append(names, z.Name)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		holding := c.Control().Holding(control.Target{Zone: name})
		if len(holding) == 0 || *holding[0].Share == 1 {
			continue
		}
		what, command, part := "all zones", "--all", "no key"
		if name != "" {
			what, command = fmt.Sprintf("zone %q", name), "'"+name+"'"
		}
		if share := *holding[0].Share; share > 0 {
			part = fmt.Sprintf("%g %% of the keys only", 100*share)
		}
		c.Logger.Warn(fmt.Sprintf("%s: enforced for %s, as was set at run time; end that by `caddy rate-limit enforce %s --remove`, with --address where admin listens elsewhere than at localhost:2019", what, part, command),
			zap.String("by", holding[0].By))
	}
}

// checkSkipped warns of each zone that has skipped all requests since the configuration started,
// limits.Enough or more. It is to be called now and then.
func (c *Config) checkSkipped() {
	counts, _ := metrics.ByZone() // what can't be gathered isn't there
	for _, z := range c.zones {
		now, before := counts[z.Name], c.before[z.Name]
		why := whySkipped(z)
		if why != "" && now.Skipped-before.Skipped >= limits.UncountedRequests && now.Met()-now.Skipped == before.Met()-before.Skipped {
			c.Once.Warn(c.Logger, warning.NothingCounted, fmt.Sprintf("zone %q: it has limited nobody, as all of the first %d requests %s", z.Name, limits.UncountedRequests, why))
		}
	}
}

// whySkipped says why a zone skips requests, and what to do, "" where that is not its configuration
// alone.
func whySkipped(z *limits.Zone) string {
	switch {
	case z.OnRedisLoss == config.LossAllow || z.AtRuntime.Load() != nil || z.OnlyThrottles():
		return ""
	case z.EmptyKey == config.EmptySkip && len(z.Except) > 0:
		return "had an empty key or were in its except; write a key that requests have, and narrow except"
	case z.EmptyKey == config.EmptySkip:
		return "had an empty key; write a key that requests have, or `empty_key client_ip`"
	case len(z.Except) > 0:
		return "were in its except; narrow that, unless the zone is for others who have yet to come"
	}
	return ""
}
