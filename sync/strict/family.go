package strict

import (
	_ "embed"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

var (
	//go:embed head.lua
	headLua string
	//go:embed bucket.lua
	bucketLua string
	//go:embed tail.lua
	tailLua string
	//go:embed charge_bucket.lua
	chargeBucketLua string
	//go:embed charge_tail.lua
	chargeTailLua string
)

// A family is what the algorithms with one kind of state have in common in Redis.
type family struct {
	// decide is the script of a call, and charge the one of a charge, nil where nothing is charged.
	decide, charge *redis.Script
	// args are the arguments of a rule in both scripts. Those that brought counts come first, and
	// with each batch of a call.
	args    func(r Rule) []any
	brought int
	// decode fills in a verdict for a request of a call, by the state in its reply.
	decode func(r Rule, v *Verdict, o *outcome, state []int64, at place)
	// combine reports whether two corrections that do the same become one. cut takes out what one
	// call brings along.
	combine func(r Rule, old, new correction) bool
	cut     func(c corrections) (now, later corrections)
	// parts are the parts of a charge as the script has them: an instant and two numbers each.
	parts func(r Rule, c ratesync.Charge) []any
	// chargeTTL is how long Redis remembers a charge after it was made.
	chargeTTL func(r Rule) time.Duration
}

// familyOf is nil for windows and logs, whose keys are cells.
func familyOf(k algorithms.Kind) *family { return algorithms.ByState(k, nil, buckets, nil) }

var (
	buckets = &family{
		decide: redis.NewScript(headLua + bucketLua + tailLua),
		charge: redis.NewScript(headLua + bucketLua + chargeBucketLua + chargeTailLua),
		args:   bucketArgs, brought: 3, decode: decodeBucket,
		combine: inOneBucket, cut: cutBucket,
		parts: bucketParts, chargeTTL: drainTTL,
	}
)

// settles is 1 for the scripts where what is granted is settled, and 0 where it is reserved.
func (r Rule) settles() int {
	if r.Reserves {
		return 0
	}
	return 1
}

func bucketArgs(r Rule) []any {
	length, unit := inLua(r.Window)
	return []any{r.limitInLua(), min(r.size(), exact-1), drainTTL(r).Milliseconds(), length, unit, r.settles()}
}

// drainTTL is longer than a full bucket takes to drain: one that is forgotten before is a burst for
// nothing.
func drainTTL(r Rule) time.Duration {
	if r.Limit <= 0 {
		return ratesync.SpareTTL
	}
	d := (float64(r.size()) + 1) / float64(r.Limit) * float64(r.Window)
	return time.Duration(min(d, float64(maxTTL))) + ratesync.SpareTTL
}
