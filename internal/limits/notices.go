// What a zone says in the log once, or now and then, however often it happens.

package limits

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/spelling"
	"github.com/caddy-tide/ratelimit/internal/warning"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// Notices are those of one zone of a handler. They are safe for concurrent use.
type Notices struct {
	full      atomic.Bool  // warned of more than max_keys
	noKey     atomic.Bool  // warned of an empty key
	ambiguous atomic.Bool  // warned of several values
	failed    atomic.Int64 // when it was last reported that Redis failed to decide
}

// Strict reports, once a second at most, that a Redis does not decide for a zone.
func (n *Notices) Strict(r *http.Request, zone string, by *Redis, err error) {
	// The client went away, or a backlog is told of by another warning.
	if err == nil || r.Context().Err() != nil || errors.Is(err, strict.ErrBacklog) {
		return
	}
	failed, now := n.failed.Load(), clock.Now()
	if (failed == 0 || now-failed > int64(time.Second)) && n.failed.CompareAndSwap(failed, now) {
		by.Replicator.Report(zone+" sync_rate strict", err)
	}
}

// Full warns once that keys share counters.
func (n *Notices) Full(z *config.Settings, once *warning.Once, log *zap.Logger) {
	if !n.full.Load() && !n.full.Swap(true) {
		once.Warn(log, warning.MaxKeys, fmt.Sprintf("zone %q: it has as many keys as max_keys allows; further keys share counters on this node, and may be denied too early", z.Name),
			zap.Int("max_keys", z.MaxKeys))
	}
}

// Empty warns once that keys come out empty, and says what happens to such requests instead.
func (n *Notices) Empty(z *config.Settings, once *warning.Once, log *zap.Logger) {
	if !n.noKey.Load() && !n.noKey.Swap(true) && !once.IsQuiet(warning.EmptyKey) {
		why := ""
		if strings.Contains(z.Key, "client_ip}") {
			why = ", as no address comes over a unix socket without trusted_proxies_unix"
		}
		log.Warn("a rate limit key came out empty"+why+"; more of this zone are not reported until the next reload", warning.Field(warning.EmptyKey),
			zap.String("zone", z.Name), zap.String("key", z.Key), zap.Stringer("empty_key", z.EmptyKey))
	}
}

// Ambiguous warns once that a request has several values for a part of its key.
func (n *Notices) Ambiguous(z *config.Settings, once *warning.Once, log *zap.Logger) {
	if !n.ambiguous.Load() && !n.ambiguous.Swap(true) && !once.IsQuiet(warning.AmbiguousKey) {
		log.Warn("a header or query parameter of a rate limit key came with several values, which backends read differently; such requests share one count, and this is not reported again for the zone. "+
			"If a proxy adds the second value, have it replace the client's", warning.Field(warning.AmbiguousKey), zap.String("zone", z.Name), zap.String("key", z.Key))
	}
}

// noticeValue warns that a request brought something as its limit that is no number. It is shown
// where keys are.
func noticeValue(z *config.Settings, r config.Rate, text string, shown bool, once *warning.Once, log *zap.Logger) {
	fields := []zap.Field{zap.String("zone", z.Name), zap.String("limit", r.String()), zap.Int64("default", r.Limit)}
	if shown {
		fields = append(fields, zap.String("value", spelling.Clip(text)))
	}
	once.Warn(log, warning.LimitValue, fmt.Sprintf("zone %q: %s came with something that is neither a whole number up to 2^53 nor unlimited; the default holds for such requests; more of this zone are not reported until the next reload", z.Name, r.From), fields...)
}
