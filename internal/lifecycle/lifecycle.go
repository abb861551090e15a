// Package lifecycle runs configurations from start to stop.
//
// A Config is one configuration. Those that run are in a list, of which the first is the current
// one: work in the background goes by it. On a reload the new one stands behind the old one until
// that stops, and then inherits its counters.
//
// One lock is held over I/O: Start and Stop take turns. It comes before those of internal/limits
// and all locks of sync and table. Nothing else takes it: requests, scrapes and the admin endpoint
// read the list of configurations as one atomic value.
package lifecycle

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/bandwidth"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// A Config is one configuration, which runs from Start to Stop.
type Config struct {
	Logger *zap.Logger
	// Redis is nil where nothing is synced. StrictTimeout is for its calls from Start on.
	Redis         *limits.Redis
	StrictTimeout time.Duration
	// Keeper keeps the counters that don't sync over a restart; it is nil for none.
	Keeper *Keeper
	// Once is what warnings of the configuration are logged by, nil for any.
	Once *warning.Once
	// Namespace is that of the zones.
	Namespace string

	zones   []*limits.Zone
	checked bool // what was set at run time was, see checkRuntime

	ending    bool   // stopped, and no other configuration came after it
	saved     spent  // when that was saved last
	unsaved   string // why the last save has failed
	endSaving context.CancelFunc
	saver     chan struct{} // closed when keepSaving has ended

	before map[string]metrics.Counts // what zones had counted when it started

	stop chan struct{}
	done chan struct{}
}

// Add notes a zone for Start. It is not safe for concurrent use.
func (c *Config) Add(z *limits.Zone) { c.zones = append(c.zones, z) }

// Zones calls yield with each zone. One that several handlers have comes as often.
func (c *Config) Zones(yield func(*limits.Zone) bool) { slices.Values(c.zones)(yield) }

// Each calls yield with each limit of each zone. A zone that several handlers have comes as often.
func (c *Config) Each(yield func(*limits.Limit) bool) {
	for _, z := range c.zones {
		for l := range z.Each {
			if !yield(l) {
				return
			}
		}
	}
}

// counted is Each with what counts denied requests before a ban.
func (c *Config) counted(yield func(*limits.Limit) bool) {
	for _, z := range c.zones {
		for l := range z.EachWithDenials {
			if !yield(l) {
				return
			}
		}
	}
}

// running are the configurations that have started and not ended, oldest first. The first one is
// the current one. Only who holds starting replaces the list; it is never changed.
var running atomic.Pointer[[]*Config]

// starting is held by one Start or Stop at a time, also while it waits for Redis or a disk.
var starting sync.Mutex

// started returns the configurations that have started and not ended.
func started() []*Config {
	if list := running.Load(); list != nil {
		return *list
	}
	return nil
}

// Current returns the configuration by which work in the background goes, nil for none.
func Current() *Config {
	if list := started(); len(list) > 0 {
		return list[0]
	}
	return nil
}

// Zone returns the zone of this name in the current configuration, nil if it has none.
func Zone(name string) *limits.Zone {
	if c := Current(); c != nil {
		return c.zone(name)
	}
	return nil
}

// zone returns the zone of a name, nil for none.
func (c *Config) zone(name string) *limits.Zone {
	for _, z := range c.zones {
		if z.Name == name {
			return z
		}
	}
	return nil
}

// Start puts the configuration in line. It becomes the current one at once if it is the first, and
// otherwise when the one before stops: until then another app may still fail to start, and then
// nothing must have changed.
func (c *Config) Start() {
	defer limits.Starting.End()
	if before := Current(); before == nil {
		c.keepControl(true)
	} else {
		c.Control().Inherit(before.Control())
	}
	c.awaitRedis()
	starting.Lock()
	defer starting.Unlock()
	list := append(slices.Clone(started()), c)
	running.Store(&list)
	if len(list) == 1 {
		c.apply()
		if c.Keeper != nil {
			c.restore()
		}
		c.beginSaving()
	}
	clock.CatchUp()
	c.before, _ = metrics.ByZone()
	c.stop, c.done = make(chan struct{}), make(chan struct{})
	go c.housekeep()
}

// awaitRedis waits for the first answer of a Redis that this process has not used yet: before it,
// the first requests of a key would be decided without what other nodes have counted. It doesn't
// hold starting.
func (c *Config) awaitRedis() {
	syncs := func(z *limits.Zone) bool { return z.Redis != nil && z.SyncRate >= 0 }
	if c.Redis != nil && slices.ContainsFunc(c.zones, syncs) && !c.Redis.Replicator.StartAndWait(limits.StartWait) {
		c.Logger.Warn("redis has not answered at the start; until it does, zones decide as their on_redis_loss says, by default with this node's counts alone",
			warning.Field(warning.SyncFails), zap.Duration("waited", limits.StartWait))
	}
}

// apply makes the configuration the one by which work in the background goes.
func (c *Config) apply() {
	if c.Redis != nil {
		c.Redis.Replicator.Start()
		c.Redis.Strict.SetTimeout(c.StrictTimeout)
		c.Redis.Slots.SetTimeout(c.StrictTimeout)
	}
	for _, z := range c.zones {
		for l := range z.EachWithDenials {
			l.Configure(z.Sweep, c.Redis)
		}
		if z.Slots != nil {
			z.Slots.Configure(z.Sweep, c.Redis)
		}
		z.ConfigureBans(c.Redis)
		if z.Throttle != nil {
			z.Throttle.Configure(bandwidth.Rate(z.Bandwidth), z.MaxKeys)
		}
	}
}

// housekeep writes the summaries of the zones' logs, once a minute, and checks each second whether
// the machine was asleep.
func (c *Config) housekeep() {
	defer close(c.done)
	minute, second := time.NewTicker(time.Minute), time.NewTicker(time.Second)
	defer minute.Stop()
	defer second.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-second.C:
			clock.CatchUp()
			c.Control().Tick()
			c.checkRuntime()
		case <-minute.C:
			c.checkSkipped()
			for _, z := range c.zones {
				z.WriteSummaries(clock.Now())
			}
		}
	}
}

// Stop ends what Start began, and makes the next configuration in line the current one. It does
// nothing for a configuration that has not started.
func (c *Config) Stop() {
	starting.Lock()
	defer starting.Unlock()
	list := slices.Clone(started())
	i := slices.Index(list, c)
	if i < 0 {
		return
	}
	list = slices.Delete(list, i, i+1)
	running.Store(&list)
	close(c.stop)
	<-c.done
	switch {
	case len(list) == 0:
		c.ending = c.Keeper != nil
	case i == 0:
		if c.Keeper != nil {
			c.endSaving()
		}
		list[0].Control().Inherit(c.Control())
		list[0].inherit(c)
		list[0].apply()
		if c.Control() != list[0].Control() {
			_ = c.Control().Keep(nil, nil) // or it would overwrite what the other one saves
		}
		// Elsewhere an earlier process may have saved changes. What it counted there is older than
		// what this one has counted since.
		list[0].keepControl(c.Keeper == nil || list[0].Keeper == nil || c.Keeper.String() != list[0].Keeper.String())
		list[0].beginSaving()
	}
	if c.Redis != nil && c.Redis.IsBorrowed() {
		for l := range c.counted {
			l.Detach(c.Redis)
		}
		for _, z := range c.zones {
			if z.Slots != nil {
				z.Slots.Detach(c.Redis)
			}
		}
		c.Redis.Close()
	}
}

// limitsByName are limits by the name of their zone and that of their Spec.
type limitsByName map[string]map[string]*limits.Limit

func (c *Config) byName() limitsByName {
	zones := make(limitsByName)
	for l := range c.counted {
		if zones[l.Settings.Name] == nil {
			zones[l.Settings.Name] = make(map[string]*limits.Limit)
		}
		zones[l.Settings.Name][limits.SpecOf(l.Settings, l.Rate).Name()] = l
	}
	return zones
}

// inherit brings counts along that go by another name now, and logs which zones of the
// configuration before go on without.
func (c *Config) inherit(before *Config) {
	had, now := before.byName(), c.byName()
	for name, all := range now {
		_, stays := had[name]
		was := name
		if !stays {
			was = config.NameBefore(name, had, now)
		}
		if from, to := before.BansOf(was), c.BansOf(name); from != nil && to != nil && from != to {
			to.Resume(from.Save())
		}
		for spec, l := range all {
			from, same := had[was][spec]
			if same && from.Counters != l.Counters {
				counts, _ := from.Save()
				l.Resume(counts, nil) // the zone's name has changed
			}
			if stays && from == nil && !l.Settings.CountsDenials {
				fields := []zap.Field{zap.String("zone", l.Settings.Name), zap.Stringer("algorithm", l.Settings.Kind), zap.Stringer("limit", l.Rate)}
				if l.Settings.CalendarOf(l.Rate) != nil {
					fields = append(fields, zap.Stringer("calendar", l.Settings.Calendar))
					c.Logger.With(fields...).Warn("a zone's calendar or window has changed: this limit starts at zero, so all have their whole quota once more",
						warning.Field(warning.ShortLived))
					continue
				}
				c.Logger.Info("a zone's algorithm, window or sub-windows have changed: this limit starts at zero", fields...)
			}
		}
	}
}

// BansOf returns the bans of a zone, nil for none.
func (c *Config) BansOf(zone string) *limits.Bans {
	if z := c.zone(zone); z != nil {
		return z.Bans()
	}
	return nil
}
