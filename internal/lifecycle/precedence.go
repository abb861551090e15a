package lifecycle

import (
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/config"
)

// logEnforcement logs where an operator's enforce precedes another one of the configuration: who
// edits that would not see why nothing changes. What was said of all zones is logged once.
func (c *Config) logEnforcement() {
	var told []string
	for _, z := range c.zones {
		e, ok := c.Control().Enforced(z.Name)
		if !ok || config.Enforce(*e.Share) == z.Enforce || slices.Contains(told, e.Zone) {
			continue
		}
		told = append(told, e.Zone)
		field, name := zap.String("zone", e.Zone), "'"+e.Zone+"'"
		if e.All {
			field, name = zap.Bool("all", true), "--all"
		}
		c.Logger.Info("an operator's enforce precedes that of the configuration", field, zap.Float64("share", *e.Share),
			zap.String("by", e.By), zap.String("note", e.Note), zap.String("command", fmt.Sprintf("caddy rate-limit enforce %s --remove", name)))
	}
}
