package limits

import (
	"slices"
	"sync/atomic"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/cycle"
)

// A division is what a side or a node takes of a limit: the part of so many of all regions, rounded
// down and 1 at least, and of that an equal one of so many nodes, rounded up.
type division struct{ regions, of, nodes int64 }

// part is so much of a number. That of nothing is nothing.
func (d division) part(n int64) int64 {
	if d.regions < d.of {
		n = max(min(n, 1), n/d.of*d.regions+n%d.of*d.regions/d.of)
	}
	return n/d.nodes + min(1, n%d.nodes)
}

// IsDivided reports whether this node or this side takes a part of the limit only.
func (l *Limit) IsDivided() bool { return l.division.regions < l.division.of || l.division.nodes > 1 }

// divideAll leaves limits so much of them, whatever it was before.
func divideAll(all []Limit, d division) {
	for i := range all {
		all[i].division = d
		all[i].Effective = all[i].Params().Compile()
	}
}

// DividedLimits are a zone's limits by the latest division. Queues stay whole: how many requests
// may wait on a node bounds no rate, and what leaves all queues together is the limit. The zero
// value is ready.
type DividedLimits struct{ last atomic.Pointer[oneDivision] }

type oneDivision struct {
	division
	limits []Limit
}

// of returns each limit and burst divided so. The limits are always the same ones.
func (s *DividedLimits) of(limits []Limit, d division) []Limit {
	if last := s.last.Load(); last != nil && last.division == d {
		return last.limits
	}
	next := &oneDivision{d, slices.Clone(limits)}
	divideAll(next.limits, d)
	for i := range next.limits {
		next.limits[i].isCached = true
	}
	s.last.Store(next)
	return next.limits
}

// ofSide returns what the side of this region takes of the limits of a request for n units, and how
// many it reserves of that: all, where no region is lost.
func (z *Zone) ofSide(limits []Limit, n int64) ([]Limit, int64) {
	reached, of := z.Redis.Replicator.Side()
	if reached >= of {
		return limits, n
	}
	limits = z.divide(limits, division{reached, of, 1}, &z.bySides)
	return limits, z.capped(n, limits)
}

// ofNode returns what this node takes of a request's limits while it is alone with its counts: its
// part among the nodes of this region, and of all regions where the zone counts over them.
func (z *Zone) ofNode(limits []Limit) []Limit {
	nodes := z.Redis.Replicator.Nodes()
	if z.Regions {
		nodes *= int64(z.Redis.Replicator.Regions())
	}
	return z.divide(limits, division{1, 1, nodes}, &z.byNodes)
}

// PartOf returns what this node admits of one of the zone's limits, 0 where it is not divided.
func (z *Zone) PartOf(limit int) int64 {
	all := z.AllLimits
	if z.Regions {
		all, _ = z.ofSide(all, 0)
	}
	if z.OnRedisLoss == config.LossDivide && z.SyncRate > 0 && z.Redis != nil && z.Redis.Replicator.Unreachable() == cycle.AllShards {
		all = z.ofNode(all)
	}
	if l := &all[limit]; l.IsDivided() {
		return l.division.part(l.Rate.Limit)
	}
	return 0
}

// divide returns a request's limits divided so. Those that came with it are changed, the zone's are
// in a cache.
func (z *Zone) divide(limits []Limit, d division, cache *DividedLimits) []Limit {
	switch {
	case len(limits) == 0:
		return limits
	case z.arePerRequest(limits) && !limits[0].isCached:
		divideAll(limits, d)
		return limits
	}
	return cache.of(z.AllLimits, d)
}
