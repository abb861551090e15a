// A zone of a handler as requests see it: what it is for, how its keys are made, and what it counts
// by. NewZone compiles one from its settings; Evaluate takes requests through several.

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
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/warning"
	ratesync "github.com/caddy-tide/ratelimit/sync"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// ZoneOptions describe a zone of one handler.
type ZoneOptions struct {
	config.Settings
	// Matchers select the requests, all where there are none.
	Matchers caddyhttp.MatcherSets
	// Except select requests that are not limited.
	Except caddyhttp.MatcherSets
	// ClassMatchers select the requests that each entry of Reserve is for.
	ClassMatchers []caddyhttp.MatcherSets
	// Namespace keeps the counters of several users of the process apart; a server has one. Redis
	// is nil where nothing is synced.
	Namespace string
	Redis     *Redis
	// Successor returns the zone of a name in the current configuration, nil where it has none. It
	// is nil where no configuration comes after that of the zone.
	Successor func(name string) *Zone
	// Restored is set where the process begins with what an earlier one has saved of the zone.
	Restored bool
	// Sweep is the time between two sweeps of the zone's counters.
	Sweep time.Duration
	// Headers are the sets of headers that tell of the zone. ByDefault is set where nothing has
	// asked for the draft's headers.
	Headers   answer.HeaderSets
	ByDefault bool
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

	// AllLimits has one limit with its counters for each rate of Limits.
	AllLimits []Limit
	// Slots are what may run at once, nil for any number.
	Slots *SlotLimit
	// KeyNames are the texts of keys that somebody wants to read, nil where none are counted.
	KeyNames *KeyNames
	// DeniedKeys are the keys that it has denied most, nil where none are counted.
	DeniedKeys *DeniedKeys
	// Throttle slows the responses of keys, nil for none.
	Throttle *bandwidth.Zone
	// Want is what to work out for admitted requests; nothing where nothing shows it. Reserving is
	// asked for beside it where responses decide whether a unit counts.
	Want, Reserving algorithms.Want
	// Denials are logged, Decisions counted; Notices are warnings that come seldom.
	Denials   *answer.DenialLog
	Decisions *metrics.ZoneCounters
	Notices   Notices
	// Responses are those that count_responses has looked at.
	Responses Responses

	// Varies is set where numbers come with the request. cost is nil where each takes one unit.
	Varies bool
	cost   *cost
	// responseCost is nil where a request costs what it took.
	responseCost *responseCost
	// counters and enforced are those of the limits, for a Redis that decides.
	counters []strict.Counter
	enforced []algorithms.Limit

	// Dry is nil where it is no DryRun.
	Dry *Dry
	// AtRuntime is what operators have set for the zone at run time; nil inside for nothing.
	AtRuntime *control.Zone

	// QueuesLast is set for queues beside other limits: their places are taken when all others have
	// admitted.
	QueuesLast bool
	// Banning is nil where nobody is banned.
	Banning *Banning
	// byNodes is what this node takes of the limits, for on_redis_loss divide, and bySides what the
	// regions that are heard of take, for on_loss divide.
	byNodes, bySides DividedLimits

	// salt is config.SaltOf its name.
	salt      uint64
	earlyData earlyDataRules
}

// NewZone compiles a zone and acquires its counters, which Release gives up. It changes nothing of
// a running configuration.
func NewZone(o ZoneOptions) (*Zone, error) {
	z := &Zone{ZoneOptions: o, salt: config.SaltOf(o.Name), AtRuntime: ControlOf(o.Redis, o.Namespace).Zone(o.Name)}
	var err error
	if z.Template, err = reqkey.Compile(o.Key, o.IPv4Prefix, o.IPv6Prefix); err != nil {
		return nil, err
	}
	z.Want = o.Kind.Traits().Waits
	if o.Settles() {
		z.Reserving = table.Reserve | algorithms.WantReset
	}
	z.responseCost = newResponseCost(o.ResponseCost)
	if z.Reserving != 0 && (len(o.Cost.Terms) > 0 || z.responseCost != nil) {
		z.Reserving |= table.InParts
	}
	log := answer.DenialLogOptions{Logger: o.Logger, Zone: o.Name, Window: o.LongestWindow()}
	if o.LogKeys {
		log.Keys = z.Template
	}
	z.Denials = answer.NewDenialLog(log)
	if o.Metrics {
		z.Decisions = metrics.NewZoneCounters(o.Name)
	}
	for _, r := range o.Limits {
		z.AllLimits = append(z.AllLimits, NewLimit(o.Namespace, &z.Settings, r, o.Headers))
		z.Varies = z.Varies || r.From != ""
	}
	if z.cost = newCost(&z.Settings); z.cost != nil {
		z.Decisions.WithUnits(z.responseCost != nil)
	}
	z.earlyData = earlyDataRulesOf(z)
	if z.IsStrict() {
		z.counters, z.enforced = countersOf(z.AllLimits), enforcedOf(z.AllLimits)
		for i := range z.AllLimits {
			z.AllLimits[i].prepare()
		}
	}
	if z.Slots = NewSlotLimit(&z.Settings, o.Headers); z.Slots != nil {
		z.KeyNames, z.DeniedKeys = &z.Slots.Names, &z.Slots.Denied
	}
	if len(z.AllLimits) > 0 {
		z.KeyNames, z.DeniedKeys = &z.AllLimits[0].Names, &z.AllLimits[0].Denied
	}
	z.Banning = NewBanning(o.Namespace, &z.Settings)
	if o.Bandwidth != 0 {
		z.Throttle = bandwidth.Acquire(o.Namespace, o.Name, bandwidth.Rate(o.Bandwidth), o.MaxKeys)
	}
	return z, nil
}

// Release gives up the counters and writes what the log holds back.
func (z *Zone) Release() {
	z.Denials.Flush(clock.Now())
	z.Decisions.Release()
	for l := range z.Each {
		l.Release()
	}
	z.Banning.ReleaseAll()
	if z.Throttle != nil {
		bandwidth.Release(z.Namespace, z.Name)
	}
	if z.Slots != nil {
		z.Slots.Release()
	}
}

// WriteSummaries writes the summaries of the zone's log that are due.
func (z *Zone) WriteSummaries(now int64) { z.Denials.Tick(now) }

// Each calls yield with each limit of the zone, the shortest window first.
func (z *Zone) Each(yield func(*Limit) bool) {
	for i := range z.AllLimits {
		if !yield(&z.AllLimits[i]) {
			return
		}
	}
}

// Arrange sorts the zones of a handler into the order in which they are asked. Those in which Redis
// decides come last, and among these the queues, whose places can't be refunded.
func Arrange(zones []*Zone) {
	rank := func(z *Zone) int {
		switch {
		case !z.IsStrict():
			return 0
		case !z.Kind.Traits().Queues:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(zones, func(a, b *Zone) int { return rank(a) - rank(b) })
	for _, z := range zones {
		z.QueuesLast = z.Kind.Traits().Queues && (len(zones) > 1 || len(z.AllLimits) > 1)
	}
}

// IsStrict reports whether Redis decides for the zone.
func (z *Zone) IsStrict() bool { return z.SyncRate == config.Strict && z.Redis != nil }

// EachWithDenials calls yield with each limit, and with what counts denied requests before a ban.
func (z *Zone) EachWithDenials(yield func(*Limit) bool) {
	for l := range z.Each {
		if !yield(l) {
			return
		}
	}
	if z.Banning != nil && z.Banning.Denials != nil {
		yield(z.Banning.Denials)
	}
}

// Applies reports whether a request is limited by the zone. One that comes back through an error
// route was counted before. One that is excepted is counted as skipped.
func (z *Zone) Applies(r *http.Request, counted []string) (bool, error) {
	if len(counted)+len(z.Matchers)+len(z.Except) == 0 {
		return true, nil
	}
	return z.isFor(r, counted)
}

func (z *Zone) isFor(r *http.Request, counted []string) (bool, error) {
	ok, excepted, err := z.Selects(r, counted)
	if excepted {
		z.Decisions.Count(answer.Skipped)
	}
	return ok && !excepted, err
}

// Selects reports whether a request is one that the zone is for, and whether it is excepted.
func (z *Zone) Selects(r *http.Request, counted []string) (ok, excepted bool, err error) {
	if len(counted) > 0 && slices.Contains(counted, z.Name) {
		return false, false, nil
	}
	if len(z.Matchers) > 0 {
		if ok, err := matches(z.Matchers, r); err != nil || !ok {
			return false, false, err
		}
	}
	if len(z.Except) > 0 {
		if excepted, err = z.Except.AnyMatchWithError(r); err != nil {
			return false, false, err
		}
	}
	return true, excepted, nil
}

// AppendKey appends the key of a request with these variables, or what stands in for an empty one.
// none is set where nothing does.
func (z *Zone) AppendKey(dst []byte, r *http.Request, vars map[string]any) (key []byte, empty, none bool) {
	start := len(dst)
	key, empty = z.Template.Append(dst, r, vars)
	switch {
	case !empty || z.EmptyKey == config.EmptyShare:
		return key, empty, false
	case z.EmptyKey == config.EmptyClientIP:
		return z.Template.AppendClientIP(key[:start], r, vars), true, false
	}
	return key[:start], true, true
}

// IsUnavailable reports whether the counts of other nodes can't be had for a key.
func (z *Zone) IsUnavailable(raw []byte) bool {
	if z.Redis == nil || z.SyncRate <= 0 {
		return false
	}
	var missed uint64
	if len(z.AllLimits) == 0 {
		missed = z.Slots.Syncer.UnavailableShards()
	} else {
		missed = z.AllLimits[0].Syncer.UnavailableShards()
	}
	return missed != 0 && ratesync.HasShardOf(missed, z.IDOf(raw))
}

// OnlyThrottles reports whether the zone has bandwidth and nothing that could deny a request.
func (z *Zone) OnlyThrottles() bool { return len(z.AllLimits) == 0 && z.Slots == nil }
