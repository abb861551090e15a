package limits

import (
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/saved"
)

// forgiver is a table as resets see it.
type forgiver interface {
	Reset(now int64, set *reset.Set) (forgiven int64)
	Forgive(now int64, counts saved.Counts, under *reset.Set)
	ForgetResets()
	Resets() *reset.Set
}

// followResets has the zones of all configurations that go by the same control record apply what is
// reset there.
func (c *Config) followResets() {
	control, redis := c.Control(), c.Redis
	control.OnReset(func(zone string, set *reset.Set) (forgiven int64) {
		if redis != nil {
			redis.Strict.Reset(zone, set)
		}
		for _, each := range started() {
			if each.Control() == control {
				forgiven = max(forgiven, each.reset(zone, set))
			}
		}
		return forgiven
	})
}

// reset has the limits of a zone apply resets, and returns how many requests of the one that
// forgives most are forgiven.
func (c *Config) reset(zone string, set *reset.Set) (forgiven int64) {
	for _, z := range c.zones {
		if z.Name != zone {
			continue
		}
		for l := range z.Each {
			forgiven = max(forgiven, l.forgiver.Reset(clock.Now(), set))
		}
	}
	return forgiven
}
