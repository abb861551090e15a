package limits

import (
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/bandwidth"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/concurrent"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/counters"
	"github.com/caddy-tide/ratelimit/internal/matchers"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/notices"
	"github.com/caddy-tide/ratelimit/internal/rates"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/settings"
	"github.com/caddy-tide/ratelimit/internal/shared"
	"github.com/caddy-tide/ratelimit/internal/top"
	"github.com/caddy-tide/ratelimit/internal/warning"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// ZoneOptions describe a zone of one handler.
type ZoneOptions struct {
	settings.Compiled
	// Matchers select the requests, all where there are none.
	Matchers caddyhttp.MatcherSets
	// Except select requests that are not limited.
	Except caddyhttp.MatcherSets
	// Reserved select the requests that each entry of Reserve is for.
	Reserved []caddyhttp.MatcherSets
	// Namespace separates users of one Redis. Redis is nil where nothing is synced.
	Namespace string
	Redis     *Redis
	// Successor returns the zone of a name in the current configuration, nil where it has none. It
	// is nil where no configuration comes after that of the zone.
	Successor func(name string) *Zone
	// Sweep is the time between two sweeps of the zone's counters.
	Sweep time.Duration
	// Headers are the sets of headers that tell of the zone. Waits is set where headers or
	// placeholders show how long it takes until more requests are admitted.
	Headers answer.HeaderSets
	Waits   bool
	// Logger gets the zone's lines, with the keys of denied requests where LogKeys is set. Once
	// writes what the whole configuration says only once.
	Logger  *zap.Logger
	LogKeys bool
	Once    *warning.Once
	// Metrics is set where the zone's decisions are counted.
	Metrics     bool
	AfterErrors bool // a request may come by an error route, after other handlers
}

// A Zone is a zone as requests see it. It is safe for concurrent use.
type Zone struct {
	ZoneOptions

	// Template makes the keys.
	Template *reqkey.Template

	limits []Limit // one for each rate of Limits
	// Slots are what may run at once, nil for any number.
	Slots *concurrent.Limit
	// KeyNames are the texts of keys that somebody wants to read, nil where none are counted.
	KeyNames *top.Names
	// Throttle slows the responses of keys, nil for none.
	Throttle *bandwidth.Zone
	want     algorithms.Want // of admitted requests; nothing where nothing shows it
	reserve  algorithms.Want // see reserves
	denials  *answer.DenialLog
	metrics  *metrics.ZoneCounters
	notices  notices.Notices

	// isFull is set where the configuration enforces the zone for all keys.
	isFull bool
	// varies is set where numbers come with the request: see limitsOf.
	varies bool
	rules  []strict.Rule // for Redis, which decides on all limits in one call

	// look is the key of a Fork, nil of all other zones.
	look *Key
	// atRuntime is what operators have set for the zone at run time; nil inside for nothing.
	atRuntime *control.Zone

	// queuesLast is set for queues beside other limits: their slots are taken when all others have
	// admitted.
	queuesLast bool
	// bans are nil where nobody is banned.
	bans *counters.Banning
	// shares are this node's shares of the limits, for on_redis_loss divide.
	shares counters.Shares

	// salt is settings.SaltOf its name.
	salt uint64
}

// Redis is one Redis and namespace.
type Redis = shared.Redis

// A Limit is one limit of a zone, with its counters.
type Limit = counters.Limit

// NewZone compiles a zone and acquires its counters, which Release gives up. It changes nothing of
// a running configuration.
func NewZone(o ZoneOptions) (*Zone, error) {
	if o.Successor == nil {
		o.Successor = func(string) *Zone { return nil }
	}
	z := &Zone{ZoneOptions: o, salt: settings.SaltOf(o.Name), atRuntime: shared.ControlOf(o.Redis, o.Namespace).Zone(o.Name)}
	var err error
	if z.Template, err = reqkey.Compile(o.Key, o.IPv4Prefix, o.IPv6Prefix); err != nil {
		return nil, err
	}
	if o.Waits {
		z.want = counters.WaitsOf(o.Kind)
	}
	z.reserve, z.isFull = z.reserves(), z.Enforce.IsFull()
	log := answer.DenialLogOptions{Logger: o.Logger, Zone: o.Name, Window: o.LongestWindow()}
	if o.LogKeys {
		log.Keys = z.Template
	}
	z.denials = answer.NewDenialLog(log)
	if o.Metrics {
		z.metrics = metrics.NewZoneCounters(o.Name)
	}
	for _, r := range o.Limits {
		z.limits = append(z.limits, counters.NewLimit(o.Namespace, &z.Compiled, r, o.Headers))
		z.varies = z.varies || r.From != ""
	}
	z.rules = counters.Rules(z.limits)
	if z.Slots = concurrent.NewLimit(&z.Compiled, o.Headers); z.Slots != nil {
		z.KeyNames = &z.Slots.Names
	}
	if len(z.limits) > 0 {
		z.KeyNames = &z.limits[0].Names
	}
	z.bans = counters.NewBanning(o.Namespace, &z.Compiled)
	if o.Bandwidth != 0 {
		z.Throttle = bandwidth.Acquire(o.Namespace, o.Name, bandwidth.Rate(o.Bandwidth), o.MaxKeys)
	}
	return z, nil
}

// Release gives up the counters and writes what the log holds back.
func (z *Zone) Release() {
	z.denials.Flush(clock.Now())
	z.metrics.Release()
	for l := range z.Each {
		l.Release()
	}
	z.bans.ReleaseAll()
	if z.Throttle != nil {
		bandwidth.Release(z.Namespace, z.Name)
	}
	if z.Slots != nil {
		z.Slots.Release()
	}
}

// Tick writes the summaries of the zone's log that are due.
func (z *Zone) Tick(now int64) { z.denials.Tick(now) }

// Each calls yield with each limit of the zone, the shortest window first.
func (z *Zone) Each(yield func(*Limit) bool) {
	for i := range z.limits {
		if !yield(&z.limits[i]) {
			return
		}
	}
}

// Arrange sorts the zones of a handler into the order in which they are asked. Those in which Redis
// decides come last, and among these the queues, whose slots can't be refunded.
func Arrange(zones []*Zone) {
	rank := func(z *Zone) int {
		switch {
		case !z.isStrict():
			return 0
		case z.Kind != algorithms.LeakyBucket:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(zones, func(a, b *Zone) int { return rank(a) - rank(b) })
	for _, z := range zones {
		z.queuesLast = z.Kind == algorithms.LeakyBucket && (len(zones) > 1 || len(z.limits) > 1)
	}
}

// isStrict reports whether Redis decides for the zone.
func (z *Zone) isStrict() bool { return z.SyncRate == rates.Strict && z.Redis != nil }

// Counted calls yield with each limit, and with what counts denied requests before a ban.
func (z *Zone) Counted(yield func(*Limit) bool) {
	for l := range z.Each {
		if !yield(l) {
			return
		}
	}
	if z.bans != nil && z.bans.Denials != nil {
		yield(z.bans.Denials)
	}
}

// applies reports whether a request is limited by the zone. One that comes back through an error
// route was counted before. One that is excepted is counted as skipped.
func (z *Zone) applies(r *http.Request, counted []string) (bool, error) {
	if len(counted)+len(z.Matchers)+len(z.Except) == 0 {
		return true, nil
	}
	return z.isFor(r, counted)
}

func (z *Zone) isFor(r *http.Request, counted []string) (bool, error) {
	ok, excepted, err := z.selects(r, counted)
	if excepted {
		z.metrics.Count(metrics.Skipped)
	}
	return ok && !excepted, err
}

// selects reports whether a request is one that the zone is for, and whether it is excepted.
func (z *Zone) selects(r *http.Request, counted []string) (ok, excepted bool, err error) {
	if len(counted) > 0 && slices.Contains(counted, z.Name) {
		return false, false, nil
	}
	if len(z.Matchers) > 0 {
		if ok, err := z.matches(r); err != nil || !ok {
			return false, false, err
		}
	}
	if len(z.Except) > 0 {
		if excepted, err = z.Excepts(r); err != nil {
			return false, false, err
		}
	}
	return true, excepted, nil
}

// Excepts reports whether a request is excepted from the zone. Caddy's matchers of addresses end
// early data with 425, which proves no address: there an address is no exception.
func (z *Zone) Excepts(r *http.Request) (bool, error) {
	return matchers.Proven(z.Except, r)
}

// appendKey appends the key of a request with these variables, or what stands in for an empty one.
// none is set where nothing does.
func (z *Zone) appendKey(dst []byte, r *http.Request, vars map[string]any) (key []byte, empty, none bool) {
	start := len(dst)
	key, empty = z.Template.Append(dst, r, vars)
	switch {
	case !empty || z.EmptyKey == settings.EmptyShare:
		return key, empty, false
	case z.EmptyKey == settings.EmptyClientIP:
		return z.Template.AppendClientIP(key[:start], r, vars), true, false
	}
	return key[:start], true, true
}

// isUnavailable reports whether the counts of other nodes can't be had for a key.
func (z *Zone) isUnavailable(raw []byte) bool {
	if z.Redis == nil || z.SyncRate <= 0 {
		return false
	}
	if len(z.limits) == 0 {
		return z.Slots.IsUnavailable(raw)
	}
	return z.limits[0].IsUnavailable(raw)
}
