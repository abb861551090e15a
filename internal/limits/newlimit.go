package limits

import (
	"math"
	"sync/atomic"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// NewLimit returns one of a zone's limits, and acquires its counters. Answers tell of it by these
// sets of headers.
func NewLimit(namespace string, z *config.Settings, r config.Rate, sets answer.HeaderSets) Limit {
	l := Limit{Counters: AcquireCounters(namespace, z, r), Settings: z, Rate: r}
	l.Effective, l.Policy = l.Params().Compile(), policyOf(z, r).Compile(sets)
	if r.From != "" {
		l.Number, l.Warned = reqkey.NewNumber(r.From), new(atomic.Bool)
	}
	return l
}

// policyOf returns what answers tell of one of a zone's limits.
func policyOf(z *config.Settings, r config.Rate) answer.Policy {
	p := answer.Policy{Zone: z.Name, Name: z.Name, Limit: r.Limit, Window: r.Window, Varies: r.From != "", Fixed: z.Kind.Traits().Fixed, Bytes: z.CountsBytes(), Calendar: z.Params(r).Calendar}
	if c := z.Params(r).Compile(); c.Size != c.N || p.Varies && z.Burst > 0 {
		p.Size = c.Size
	}
	if len(z.Limits) > 1 {
		p.Name += "-" + config.WindowText(r.Window)
	}
	return p
}

// Room returns what is left of the tightest of a zone's limits for a key, by this node's own
// counts. ok is false where a limit's table has no slot for it. Redis is not asked for such a key:
// max_keys bounds what a zone puts into Redis, too.
func Room(limits []Limit, key keys.Key, raw []byte, now int64) (left int64, ok bool) {
	left = math.MaxInt64
	for i := range limits {
		l := &limits[i]
		one, ok := l.Table.Room(l.Effective, key, raw, now)
		if !ok {
			return 0, false
		}
		left = min(left, one)
	}
	return left, true
}
