package ratelimit

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/rates"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/settings"
	"github.com/caddy-tide/ratelimit/internal/warning"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// waitsOf is which wait headers and placeholders tell of a limit that has admitted.
func waitsOf(k algorithms.Kind) algorithms.Want {
	if k == algorithms.FixedWindow {
		return algorithms.WantReset
	}
	return algorithms.WantNext
}

// zone is a zone as requests see it.
type zone struct {
	settings.Zone
	matchers caddyhttp.MatcherSets
	template *reqkey.Template
	counters []counters // one for each limit, as are limiters, policies and rules
	limiters []limiter
	want     algorithms.Want // of admitted requests; nothing where nobody is told
	policies []*answer.Policy
	log      *answer.RefusalLog
	metrics  *metrics.Zone
	logger   *zap.Logger
	said     *warning.Once
	full     atomic.Bool // warned of more than max_keys
	noKey    atomic.Bool // warned of an empty key

	// For sync_rate 0.
	shared       *sharedRedis
	rules        []strict.Rule
	strictFailed atomic.Int64 // when it was last reported that Redis failed to decide

	// queuesLast is set for queues beside other limits: their places are taken when all others have admitted.
	queuesLast bool

	// parts are the limiters of an equal part of each limit, for on_redis_loss divide.
	parts atomic.Pointer[parts]
}

type parts struct {
	nodes    int64
	limiters []limiter
}

func (z *zone) strict() bool { return z.SyncRate == rates.Strict && z.shared != nil }

func (z *zone) matches(r *http.Request) (bool, error) {
	if len(z.matchers) == 0 {
		return true, nil
	}
	return z.matchers.AnyMatchWithError(r)
}

// wasCounted says that a request has been through the zone before it came back through an error route.
func (z *zone) wasCounted(counted []string) bool {
	return len(counted) > 0 && slices.Contains(counted, z.Name)
}

// appendKey appends the key of a request with these variables in this zone. skip says that the zone doesn't count it.
func (z *zone) appendKey(dst []byte, r *http.Request, vars map[string]any) (key []byte, skip bool) {
	start := len(dst)
	key, empty := z.template.Append(dst, r, vars)
	if !empty {
		return key, false
	}
	z.warnEmpty()
	switch z.EmptyKey {
	case settings.EmptySkip:
		z.metrics.Count(metrics.Skipped)
		return key[:start], true
	case settings.EmptyDeny:
		return key[:start], true
	case settings.EmptyShare:
		return key, false
	}
	return z.template.AppendClientIP(key[:start], r, vars), false
}

// lost says that the counts of other nodes can't be had for a key.
func (z *zone) lost(raw []byte) bool {
	return z.shared != nil && z.SyncRate > 0 && z.counters[0].lost(raw)
}

// divided are limiters of this node's share of each limit, rounded up: what it may admit while it is alone with its counts.
func (z *zone) divided() []limiter {
	nodes := z.shared.replicator.Nodes()
	if p := z.parts.Load(); p != nil && p.nodes == nodes {
		return p.limiters
	}
	p := &parts{nodes: nodes}
	part := z.Zone
	part.Burst = (z.Burst + nodes - 1) / nodes
	for i, r := range z.Limits {
		r.Limit = r.Limit/nodes + min(1, r.Limit%nodes)
		p.limiters = append(p.limiters, z.counters[i].limiter(&part, r))
	}
	z.parts.Store(p)
	return p.limiters
}

// heir is the zone of this name in the configuration in force, nil if it has none. A request that is on its way when its own configuration ends goes
// by that one's Redis, whose counts are the ones that go on.
func (z *zone) heir() *zone {
	if a := inForce.Load(); a != nil {
		if i := slices.IndexFunc(a.zones, func(other *zone) bool { return other.Name == z.Name }); i >= 0 {
			return a.zones[i]
		}
	}
	return nil
}

// noteStrict reports, once a second at most, that a Redis does not decide for this zone.
func (z *zone) noteStrict(r *http.Request, by *sharedRedis, err error) {
	if err == nil || r.Context().Err() != nil { // or the client went away
		return
	}
	failed, now := z.strictFailed.Load(), clock.Now()
	if (failed == 0 || now-failed > int64(time.Second)) && z.strictFailed.CompareAndSwap(failed, now) {
		by.replicator.Report(z.reportName(), err)
	}
}

func (z *zone) reportName() string { return z.Name + " sync_rate 0" }

// warnFull warns once that keys share the sketch.
func (z *zone) warnFull() {
	if !z.full.Load() && !z.full.Swap(true) {
		z.said.Warn(z.logger, warning.MaxKeys, fmt.Sprintf("zone %q: it holds as many keys as max_keys allows; further ones share a sketch on this node, and may be refused too early", z.Name),
			zap.Int("max_keys", z.MaxKeys))
	}
}

// warnEmpty says once that keys come out empty, and what happens to such requests instead.
func (z *zone) warnEmpty() {
	if !z.noKey.Load() && !z.noKey.Swap(true) {
		z.logger.Warn("a rate limit key came out empty; this is not reported again", warning.Field(warning.EmptyKey),
			zap.String("zone", z.Name), zap.String("key", z.Key), zap.Stringer("instead", z.EmptyKey))
	}
}

// policyOf is what answers tell of one of a zone's limits.
func policyOf(s *settings.Zone, r rates.Rate) answer.Policy {
	p := answer.Policy{Zone: s.Name, Name: s.Name, Limit: r.Limit, Window: r.Window, Fixed: s.Kind == algorithms.FixedWindow}
	if len(s.Limits) > 1 {
		p.Name += "-" + rates.WindowText(r.Window)
	}
	return p
}
