package limits

import (
	"slices"
	"sync/atomic"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/cycle"
)

// A share is a part of a limit: that of so many of all regions, rounded down and 1 at least, and of
// that an equal one of so many nodes, rounded up.
type share struct{ regions, of, nodes int64 }

// part is the share of a number. That of nothing is nothing.
func (s share) part(n int64) int64 {
	if s.regions < s.of {
		n = max(min(n, 1), n/s.of*s.regions+n%s.of*s.regions/s.of)
	}
	return n/s.nodes + min(1, n%s.nodes)
}

// IsDivided reports whether this node or this side takes a part of the limit only.
func (l *Limit) IsDivided() bool { return l.share.regions < l.share.of || l.share.nodes > 1 }

// divide leaves limits their share, whatever it was before.
func divide(all []Limit, s share) {
	for i := range all {
		all[i].share = s
		all[i].Effective = all[i].Params().Compile()
	}
}

// Shares are shares of a zone's limits. Queues stay whole: how many requests may wait on a node
// bounds no rate, and what leaves all queues together is the limit. The zero value is ready.
type Shares struct{ last atomic.Pointer[sharedLimits] }

type sharedLimits struct {
	share
	limits []Limit
}

// of returns this share of each limit and burst. The limits are always the same ones.
func (s *Shares) of(limits []Limit, share share) []Limit {
	if last := s.last.Load(); last != nil && last.share == share {
		return last.limits
	}
	next := &sharedLimits{share, slices.Clone(limits)}
	divide(next.limits, share)
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
	limits = z.share(limits, share{reached, of, 1}, &z.sides)
	return limits, z.capped(n, limits)
}

// ofNode returns what this node takes of a request's limits while it is alone with its counts: its
// share among the nodes of this region, and of all regions where the zone counts over them.
func (z *Zone) ofNode(limits []Limit) []Limit {
	nodes := z.Redis.Replicator.Nodes()
	if z.Regions {
		nodes *= int64(z.Redis.Replicator.Regions())
	}
	return z.share(limits, share{1, 1, nodes}, &z.shares)
}

// ShareOf returns what this node admits of one of the zone's limits, 0 where it is not divided.
func (z *Zone) ShareOf(limit int) int64 {
	all := z.AllLimits
	if z.Regions {
		all, _ = z.ofSide(all, 0)
	}
	if z.OnRedisLoss == config.LossDivide && z.SyncRate > 0 && z.Redis != nil && z.Redis.Replicator.Unreachable() == cycle.AllShards {
		all = z.ofNode(all)
	}
	if l := &all[limit]; l.IsDivided() {
		return l.share.part(l.Rate.Limit)
	}
	return 0
}

// share returns a share of a request's limits. Those that came with it are changed, the zone's are
// in a cache.
func (z *Zone) share(limits []Limit, s share, cache *Shares) []Limit {
	switch {
	case len(limits) == 0:
		return limits
	case z.arePerRequest(limits) && !limits[0].isCached:
		divide(limits, s)
		return limits
	}
	return cache.of(z.AllLimits, s)
}
