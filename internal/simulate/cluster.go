package simulate

import (
	"fmt"
	"time"

	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/sim"
)

// latency is the mean of the one-way time between a node and Redis.
const latency = 500 * time.Microsecond

// A cluster is what syncs the counters of several nodes: the loop of the product, in the time of
// the log. Each limit has a store of its own.
type cluster struct {
	stores map[string]*store
	last   int64 // the time of the request before
}

// store is a limit's Redis and its links.
type store struct {
	net    *sim.Network
	bans   banStore
	links  []*sim.Link
	joined map[*limits.Counters]bool
	rate   time.Duration
}

// join links a zone's counters on a node to those of the other nodes, if it syncs.
func (c *cluster) join(node int, z *limits.Zone) {
	bans := z.Bans() // go along with the first limit
	for l := range z.EachWithDenials {
		table, config := l.ForSimulator()
		if config.Interval <= 0 {
			continue
		}
		name := z.Name + " " + limits.SpecOf(l.Settings, l.Rate).Name()
		s := c.stores[name]
		if s == nil {
			net := sim.NewNetwork(0, latency, 1)
			s = &store{net: net, bans: banStore{net, map[ban.ID]ban.State{}}, joined: map[*limits.Counters]bool{}, rate: config.Interval}
			c.stores[name] = s
		}
		if s.joined[l.Counters] {
			continue // another handler has the zone as well
		}
		s.joined[l.Counters] = true
		link := s.net.Join(fmt.Sprintf("node %d", node), table, config.Interval, config.Params)
		config.Waker, config.After = link.Waker, s.net.After
		table.Configure(config, z.MaxKeys)
		s.links = append(s.links, link)
		if bans != nil {
			link.Carried = s.bans.carry(&bans.Set)
			bans.Set.Share(link.Waker)
			bans = nil
		}
	}
}

// until syncs what is due before an instant.
func (c *cluster) until(at int64) {
	for _, s := range c.stores {
		if c.last == 0 {
			s.net.Skip(time.Duration(at))
			for _, l := range s.links {
				l.Start()
			}
		}
		// After so many syncs nothing is left to be told.
		if quiet := 10*s.rate + 10*time.Second; at-c.last > int64(2*quiet) && c.last != 0 {
			s.net.Until(c.last + int64(quiet))
			s.net.Skip(time.Duration(at - c.last - int64(2*quiet)))
		}
		s.net.Until(at)
	}
	c.last = at
}

// expire has the stores drop what they no longer keep.
func (c *cluster) expire() {
	for _, s := range c.stores {
		s.net.Store.Expire(s.net.Now())
		s.bans.expire()
	}
}

// rateOf returns the sync_rate of a zone in a simulation.
func (o *Options) rateOf(z *limits.Zone) config.SyncRate {
	switch {
	case o.SyncRate != nil && (z.Redis == nil || z.SyncRate >= 0):
		return *o.SyncRate
	case z.Redis == nil:
		return config.Local
	}
	return z.SyncRate
}
