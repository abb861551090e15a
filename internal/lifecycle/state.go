package lifecycle

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/bandwidth"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/metrics"
)

// Collect adds what metrics show of the process. It waits for no I/O.
func Collect(s metrics.Scrape) {
	of := map[*limits.Counters]*limits.Limit{}
	if c := Current(); c != nil {
		for l := range c.Each {
			of[l.Counters] = l
		}
	}
	limits.EachBans(func(b *limits.Bans) { s.Add(metrics.BannedKeys, float64(b.Count()), b.Zone()) })
	limits.EachCounters(func(c *limits.Counters) { collectCounters(s, c, of[c]) })
	limits.EachSlots(func(c *limits.Slots) {
		s.Add(metrics.Keys, float64(c.Table.Keys()), c.Zone())
		s.AddBool(metrics.SketchInUse, c.Table.Overflowing(), c.Zone())
		s.Add(metrics.Concurrent, float64(c.Table.InUse()), c.Zone())
	})
	bandwidth.Each(func(z *bandwidth.Zone) {
		b := z.Status()
		s.Add(metrics.OpenResponses, float64(b.Open), b.Zone)
		s.Add(metrics.Bytes, float64(b.Bytes), b.Zone)
		s.Add(metrics.Waited, b.Waited.Seconds(), b.Zone)
	})
	limits.EachRedis(func(r *limits.Redis) { r.Collect(s) })
	for _, c := range started() {
		if c.Redis != nil && c.Redis.IsBorrowed() {
			c.Redis.Collect(s)
		}
	}
	if c := Current(); c != nil && c.Redis == nil {
		limits.CollectControl(s, c.Control(), c.Namespace)
	}
}

// collectCounters adds what there is of the counters of a limit. l is nil for one that is not in
// the current configuration.
func collectCounters(s metrics.Scrape, c *limits.Counters, l *limits.Limit) {
	zone := c.Zone()
	s.Add(metrics.Keys, float64(c.Table.Keys()), zone)
	s.AddBool(metrics.SketchInUse, c.Table.Overflowing(), zone)
	if sync := c.Sync(); sync != nil {
		at := 0.0 // never
		if !sync.Synced.IsZero() {
			at = float64(sync.Synced.UnixNano()) / float64(time.Second)
		}
		s.Add(metrics.LastSync, at, zone)
	}
	if l == nil || l.Rate.From != "" {
		return
	}
	s.Add(metrics.LimitRequests, float64(l.Rate.Limit), zone, config.WindowText(l.Rate.Window))
	if l.Settings.Kind.Traits().TakesBurst {
		s.Add(metrics.Burst, float64(l.Effective.Size), zone)
	}
}
