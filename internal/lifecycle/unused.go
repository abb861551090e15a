package lifecycle

import (
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

// checkOverrides warns, once the control record is known, of each zone that has overrides and is
// not in the configuration: it may have been renamed. It is to be called every second.
func (c *Config) checkOverrides() {
	if c.checked || c.Control().IsShared() && !c.Control().IsEqual() {
		return
	}
	c.checked = true
	zones := c.Control().OverridesByZone()
	for _, name := range slices.Sorted(maps.Keys(zones)) {
		if c.zone(name) == nil && !c.Once.IsQuiet(warning.UnusedOverrides) {
			c.Logger.Warn(fmt.Sprintf("the overrides of zone %q, %d in all, have no effect here, as the configuration doesn't have that zone; if it was renamed, set them for its new name, and then remove these by `caddy rate-limit override '%[1]s' --file /dev/null --replace --force`; if only other nodes have it, all is well", name, zones[name]),
				warning.Field(warning.UnusedOverrides), zap.String("zone", name))
		}
	}
}
