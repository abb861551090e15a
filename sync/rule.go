package ratesync

import (
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
)

var (
	//go:embed strict_head.lua
	strictHead string
	//go:embed strict_window.lua
	strictWindow string
	//go:embed strict_bucket.lua
	strictBucket string
	//go:embed strict_log.lua
	strictLog string
	//go:embed strict_tail.lua
	strictTail string

	windowScript = redis.NewScript(strictHead + strictWindow + strictTail)
	bucketScript = redis.NewScript(strictHead + strictBucket + strictTail)
	logScript    = redis.NewScript(strictHead + strictLog + strictTail)
)

const (
	// exact is how far the numbers of Redis' Lua, which are doubles, can count.
	exact = 1 << 53
	// mostWanted bounds the units of one call; a log writes a member for each.
	mostWanted = 128
	// mostTTL keeps what Redis adds to its clock from overflowing.
	mostTTL = 100 * 365 * 24 * time.Hour
)

// A Rule is one limit of a zone in strict mode. All rules of a zone are of one Kind, and their windows differ.
type Rule struct {
	// Kind is one letter for the algorithm, as in Spec.
	Kind   byte
	Limit  int64
	Window time.Duration
	// Buckets cuts a sliding window finer; 0 stands for 1.
	Buckets int
	// Burst is the size of a token bucket or GCRA; 0 stands for Limit.
	Burst int64
	// Queue is how many requests can wait in a leaky bucket.
	Queue int64
}

// spec gives the names of the rule's keys, the same as in the background exchange.
func (r Rule) spec(zone string) Spec {
	s := Spec{Zone: zone, Kind: r.Kind, Window: r.Window, Buckets: 1}
	if r.Kind == 's' {
		s.Buckets = min(max(1, r.Buckets), algorithms.MaxLive)
		s.Live = s.Buckets
	}
	return s
}

// size is what fits at once: what a bucket can hold, else the limit.
func (r Rule) size() int64 {
	switch {
	case r.Kind == 'q':
		return min(max(0, r.Queue), exact-2) + 1
	case (r.Kind == 't' || r.Kind == 'g') && r.Burst > 0:
		return r.Burst
	}
	return r.Limit
}

// args are the rule's arguments of its script.
func (r Rule) args(zone string) []any {
	limit := min(max(0, r.Limit), exact-1)
	spec := r.spec(zone)
	switch r.Kind {
	case 'f', 's':
		span := r.Window / time.Duration(spec.Buckets)
		length, unit := inLua(span)
		return []any{limit, length, unit, spec.Live, spec.ttl(span, 0).Milliseconds()}
	case 'l':
		return []any{limit, int64((r.Window + time.Microsecond - 1) / time.Microsecond), (r.Window + time.Minute).Milliseconds()}
	}
	length, unit := inLua(r.Window)
	return []any{limit, min(max(0, r.size()), exact-1), length, unit, r.drainTTL().Milliseconds()}
}

// drainTTL is longer than a full bucket takes to drain: one that is forgotten before is a burst for nothing.
func (r Rule) drainTTL() time.Duration {
	if r.Limit <= 0 {
		return time.Minute
	}
	d := (float64(r.size()) + 1) / float64(r.Limit) * float64(r.Window)
	return time.Duration(min(d, float64(mostTTL))) + time.Minute
}

// inLua is a length of time as the scripts have it: in microseconds, or in nanoseconds (with a unit of 1000) where it is no whole number of them.
func inLua(d time.Duration) (length, unit int64) {
	if d%time.Microsecond != 0 && d > time.Microsecond && d < exact/4 {
		return int64(d), 1000
	}
	return max(1, d.Microseconds()), 1
}

// A ruleset is a zone's rules as one configuration has them, made ready for calls, and the calls under way.
type ruleset struct {
	zone   string
	rules  []Rule
	script *redis.Script
	args   []any
	// middle is what stands in the names of the record's and the rules' keys between the shard and the hash.
	middle []string
	// field is this ruleset's own in the records: during a reload two rulesets of one zone number their calls apart.
	field string

	mu      sync.Mutex
	flights map[[16]byte]*flight
}

func newRuleset(zone string, rules []Rule, field string) (*ruleset, error) {
	if len(rules) == 0 {
		return nil, errors.New("a strict zone has no rule")
	}
	rs := &ruleset{
		zone: zone, rules: slices.Clone(rules), field: field,
		middle: []string{zone + ":strict:"}, flights: make(map[[16]byte]*flight),
	}
	for _, r := range rules {
		if r.Kind != rules[0].Kind || !strings.ContainsRune("fstgql", rune(r.Kind)) || r.Window <= 0 {
			return nil, fmt.Errorf("strict zone %q: rules %+v don't go together", zone, rules)
		}
		spec := r.spec(zone)
		rs.middle = append(rs.middle, zone+":"+spec.Name()+":")
		rs.args = append(rs.args, r.args(zone)...)
	}
	switch rules[0].Kind {
	case 'f', 's':
		rs.script = windowScript
	case 'l':
		rs.script = logScript
	default:
		rs.script = bucketScript
	}
	return rs, nil
}

// keys are the names that a call of the script needs.
func (rs *ruleset) keys(prefix string, id [16]byte) []string {
	shard := prefix + ":{" + strconv.Itoa(int(id[0]&63)) + "}:"
	hash := base64.RawURLEncoding.EncodeToString(id[:])
	keys := make([]string, len(rs.middle))
	for i, m := range rs.middle {
		keys[i] = shard + m + hash
	}
	return keys
}
