package lifecycle

import (
	"github.com/caddy-tide/ratelimit/internal/bandwidth"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/metrics"
)

// State returns what metrics show of the process. It waits for no I/O.
func State() (s metrics.State) {
	of := map[*limits.Counters]*limits.Limit{}
	if c := Current(); c != nil {
		for l := range c.Each {
			of[l.Counters] = l
		}
	}
	limits.EachBans(func(b *limits.Bans) {
		s.Bans = append(s.Bans, metrics.BanState{Zone: b.Zone(), Keys: b.Count()})
	})
	limits.EachCounters(func(c *limits.Counters) {
		s.Zones = append(s.Zones, of[c].AddTo(c.State()))
	})
	limits.EachSlots(func(c *limits.Slots) { s.Zones = append(s.Zones, c.State()) })
	bandwidth.Each(func(z *bandwidth.Zone) {
		b := z.Status()
		s.Bandwidths = append(s.Bandwidths, metrics.BandwidthState{Zone: b.Zone, Open: b.Open, Bytes: b.Bytes, Waited: b.Waited})
	})
	add := func(r *limits.Redis) {
		s.Redis = append(s.Redis, r.State())
		s.Regions = append(s.Regions, r.Regions()...)
		s.Controls = append(s.Controls, limits.ControlState(r.Control, r.Namespace()))
	}
	limits.EachRedis(add)
	for _, c := range started() {
		if c.Redis != nil && c.Redis.IsBorrowed() {
			add(c.Redis)
		}
	}
	if c := Current(); c != nil && c.Redis == nil {
		s.Controls = append(s.Controls, limits.ControlState(c.Control(), c.Namespace))
	}
	return s
}
