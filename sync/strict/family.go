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
	//go:embed log.lua
	logLua string
	//go:embed tail.lua
	tailLua string
	//go:embed charge_bucket.lua
	chargeBucketLua string
	//go:embed charge_log.lua
	chargeLogLua string
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
	// combine reports whether two corrections that do the same become one, and hasLeft whether one
	// of an instant changes nothing any more. cut takes out what one call brings along.
	combine func(r Rule, old, new correction) bool
	hasLeft func(r Rule, at, now int64) bool
	cut     func(c corrections) (now, later corrections)
	// maxWanted bounds the requests that one call asks for, and what it grants; 0 is no bound.
	maxWanted int
	// numbered is set where a unit is refunded by its call and its number in it, else it is by its
	// instant.
	numbered bool
	// parts are the parts of a charge as the script has them: an instant and two numbers each.
	parts func(r Rule, c ratesync.Charge) []any
	// chargeTTL is how long Redis remembers a charge after it was made.
	chargeTTL func(r Rule) time.Duration
}

// MostUnits is the most that a limit of a kind may be where requests cost different numbers, 0 for
// no bound: a log has a member for each unit.
func MostUnits(k algorithms.Kind) int64 {
	if f := familyOf(k); f != nil {
		return int64(f.maxWanted)
	}
	return 0
}

// familyOf is nil for windows, whose keys are cells.
func familyOf(k algorithms.Kind) *family { return algorithms.ByState(k, nil, buckets, logs) }

var (
	buckets = &family{
		decide: redis.NewScript(headLua + bucketLua + tailLua),
		charge: redis.NewScript(headLua + bucketLua + chargeBucketLua + chargeTailLua),
		args:   bucketArgs, brought: 3, decode: decodeBucket,
		combine: inOneBucket, cut: cutBucket,
		hasLeft: func(Rule, int64, int64) bool { return false },
		parts:   bucketParts, chargeTTL: drainTTL,
	}
	logs = &family{
		decide: redis.NewScript(headLua + logLua + tailLua),
		charge: redis.NewScript(headLua + logLua + chargeLogLua + chargeTailLua),
		args:   logArgs, brought: 1, decode: decodeLog,
		combine: inOneSlot, cut: cutLog,
		hasLeft:   func(r Rule, at, now int64) bool { return at <= now-r.Window.Microseconds() },
		maxWanted: maxWanted, numbered: true,
		parts: logParts, chargeTTL: logTTL,
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

func logArgs(r Rule) []any {
	return []any{r.limitInLua(), int64((r.Window + time.Microsecond - 1) / time.Microsecond), logTTL(r).Milliseconds()}
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

func logTTL(r Rule) time.Duration { return r.Window + ratesync.SpareTTL }
