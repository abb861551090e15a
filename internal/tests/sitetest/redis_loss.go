package sitetest

import (
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// AppWith has the timeouts that a busy machine needs.
func AppWith(r *redistest.Server) *ratelimit.App {
	long := caddy.Duration(30 * time.Second)
	return &ratelimit.App{Redis: &redisconn.Options{Address: []string{r.Addr}, Timeout: long}, Namespace: "test", StrictTimeout: long}
}

// Shows waits until the state of a zone in the admin endpoint is as wanted.
func Shows(t *testing.T, zone, what string, want func(operate.LimitState) bool) {
	t.Helper()
	redistest.Eventually(t, zone+" "+what, func() bool {
		for _, z := range operate.CurrentState().Zones {
			if z.Zone == zone && want(z) {
				return true
			}
		}
		return false
	})
}

// Lease is that of a node, in Redis, which lasts longer than any test.
const Lease = "1 4102444800000"

// Shared is the client of Redis, nil for none.
func (s *Site) Shared() *limits.Redis { return s.Handler.Zones()[0].Redis }

// Lost reports whether a zone's counts are known not to reach Redis.
func (s *Site) Lost(zone string) bool {
	for _, z := range s.Handler.Zones() {
		if z.Name == zone {
			return FirstOf(z).Syncer.IsUnavailable([]byte("any key, as there is no Cluster"))
		}
	}
	return false
}
