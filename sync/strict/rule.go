package strict

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

const (
	// exact is how far the numbers of Redis' Lua, which are doubles, can count.
	exact = ratesync.MaxExact
	// maxTTL keeps what Redis adds to its clock from overflowing.
	maxTTL = 100 * 365 * 24 * time.Hour
)

// A Rule is one limit of a zone in strict mode. All rules of a zone are of one Kind, and their
// windows differ.
type Rule algorithms.Params

// spec gives the names of the rule's keys, the same as in the background sync.
func (r Rule) spec(zone string) ratesync.Spec { return ratesync.SpecOf(zone, algorithms.Params(r)) }

// compile works out what the algorithm goes by.
func (r Rule) compile() algorithms.Limit { return algorithms.Params(r).Compile() }

// size is what fits at once: what a bucket can hold, else the limit.
func (r Rule) size() int64 { return r.compile().Size }

// limitInLua is the limit as the scripts have it.
func (r Rule) limitInLua() int64 { return min(max(0, r.Limit), exact-1) }

// inLua is a length of time as the scripts have it: in microseconds, or in nanoseconds (with a unit
// of 1000) where it is no whole number of them.
func inLua(d time.Duration) (length, unit int64) {
	if d%time.Microsecond != 0 && d > time.Microsecond && d < exact/4 {
		return int64(d), 1000
	}
	return max(1, d.Microseconds()), 1
}

// A ruleset is what the rules of a zone have in common however many they admit: the names of their
// keys, their script, and the calls under way. Limit, Burst and Queue come with each call.
type ruleset struct {
	shape  []Rule
	family *family
	script *redis.Script
	// keys are those of the record of calls, and of each rule.
	keys []ratesync.Keys
	// zone has the rules, and bans are the keys of its bans.
	zone string
	bans ratesync.Keys
	// field is this ruleset's own in the records: during a reload two rulesets of one zone number
	// their calls apart.
	field string
	used  time.Time // guarded by Limiter.mu

	mu     sync.Mutex
	queues map[[16]byte]*queue
}

// shape is the rule without what may differ from call to call.
func (r Rule) shape() Rule {
	r.Limit, r.Burst, r.Queue = 0, 0, 0
	return r
}

func newRuleset(in ratesync.Keyspace, zone string, rules []Rule, field string) (*ruleset, error) {
	if len(rules) == 0 {
		return nil, errors.New("a strict zone has no rule")
	}
	rs := &ruleset{family: familyOf(rules[0].Kind), zone: zone, bans: in.Zone(zone, "ban"), field: field, keys: []ratesync.Keys{in.Zone(zone, "strict")}, queues: make(map[[16]byte]*queue)}
	for _, r := range rules {
		if r.Kind != rules[0].Kind || r.Window <= 0 || familyOf(r.Kind) == nil {
			return nil, fmt.Errorf("strict zone %q: rules %+v don't go together", zone, rules)
		}
		rs.shape = append(rs.shape, r.shape())
		rs.keys = append(rs.keys, in.Table(r.spec(zone)))
	}
	rs.script = rs.family.decide
	return rs, nil
}

// has reports whether rules have the names of this ruleset.
func (rs *ruleset) has(rules []Rule) bool {
	return slices.EqualFunc(rs.shape, rules, func(a, b Rule) bool { return a == b.shape() })
}

// mayCall reports whether a call of a key may be under way. Limiter.mu is held, as for isIdle.
func (rs *ruleset) mayCall(id [16]byte) bool {
	if !rs.mu.TryLock() {
		return true
	}
	defer rs.mu.Unlock()
	return rs.queues[id] != nil
}

// isIdle reports whether nothing is under way or left to be sent. Limiter.mu is held, which others
// take while they hold rs.mu.
func (rs *ruleset) isIdle() bool {
	if !rs.mu.TryLock() {
		return false
	}
	defer rs.mu.Unlock()
	return len(rs.queues) == 0
}

// keysOf are the keys that a call of the script names.
func (rs *ruleset) keysOf(id [16]byte) []string {
	keys := make([]string, len(rs.keys))
	for i, k := range rs.keys {
		keys[i] = k.Of(id)
	}
	return keys
}
