package strict

import (
	"fmt"
	"maps"

	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// Tell has the other ones of so many regions told of what a zone's windows admit. 1 is for none.
func (s *Limiter) Tell(zone string, regions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]int)
	if had := s.regions.Load(); had != nil {
		maps.Copy(all, *had)
	}
	if all[zone] = regions; regions <= 1 {
		delete(all, zone)
	}
	s.regions.Store(&all)
}

// tells adds to the arguments of a rule, where other regions are to be told of it: see window.lua.
func (s *Limiter) tells(rs *ruleset, r Rule, id [16]byte, args []any) []any {
	all := s.regions.Load()
	if all == nil || (*all)[rs.zone] == 0 || rs.family != windows {
		return args
	}
	shard := 0
	if s.cluster {
		shard = ratesync.ShardOf(id)
	}
	args[4] = fmt.Sprintf("%d %d %d %d", args[4], ratesync.LeastTold(r.compile()), (*all)[rs.zone], shard)
	return args
}
