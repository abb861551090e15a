package lifecycle

import (
	"github.com/caddy-tide/ratelimit/internal/bandwidth"
	"github.com/caddy-tide/ratelimit/internal/concurrent"
	"github.com/caddy-tide/ratelimit/internal/counters"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/shared"
)

// State returns what metrics show of the process. It waits for no I/O.
func State() (s metrics.State) {
	of := map[*counters.Counters]*limits.Limit{}
	if c := Current(); c != nil {
		for l := range c.Each {
			of[l.Counters] = l
		}
	}
	counters.EachBans(func(b *counters.Bans) {
		s.Bans = append(s.Bans, metrics.BanState{Zone: b.Zone(), Keys: b.Count()})
	})
	counters.Each(func(c *counters.Counters) {
		s.Zones = append(s.Zones, of[c].AddTo(c.State()))
	})
	concurrent.Each(func(c *concurrent.Slots) { s.Zones = append(s.Zones, c.State()) })
	bandwidth.Each(func(z *bandwidth.Zone) {
		b := z.Status()
		s.Bandwidths = append(s.Bandwidths, metrics.BandwidthState{Zone: b.Zone, Open: b.Open, Bytes: b.Bytes, Waited: b.Waited})
	})
	add := func(r *shared.Redis) {
		s.Redis = append(s.Redis, r.State())
		s.Controls = append(s.Controls, shared.ControlState(r.Control, r.Namespace()))
	}
	shared.Each(add)
	for _, c := range started() {
		if c.Redis != nil && c.Redis.IsBorrowed() {
			add(c.Redis)
		}
	}
	if c := Current(); c != nil && c.Redis == nil {
		s.Controls = append(s.Controls, shared.ControlState(c.Control(), c.Namespace))
	}
	return s
}
