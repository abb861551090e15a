package limits

import (
	"net/http"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A unit that Redis granted is refunded until it has drained there, which is before the answer came
// by as much as that took. What others spend as it drains is theirs.
func TestAUnitInRedisEndsByItsDecision(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := faultproxy.Start(t, server.Addr)
	slow := *server
	slow.Addr = proxy.Addr
	const window, took = 1000 * time.Hour, 300 * time.Millisecond
	for _, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA, algorithms.SlidingLog, algorithms.FixedWindow} {
		s := one(kind.String(), 1, config.Strict)
		s.Kind, s.Limits = kind, []config.Rate{{Limit: 1, Window: window}}
		s.CountResponses = &caddyhttp.ResponseMatcher{StatusCode: []int{http.StatusUnauthorized}}
		zones := []*Zone{newZone(t, s, remote(t, &slow))}
		ask := func() *Evaluation {
			t.Helper()
			e, err := Evaluate(zones, request("x"), clock.Now())
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		proxy.SetDelay(took)
		e := ask()
		came := clock.Now()
		proxy.SetDelay(0)
		if e.Denied {
			t.Fatalf("%s: the first request is denied", kind)
		}
		reset := int64(e.taken[0].Reset)
		e.Hold().Replay(Response{Status: http.StatusOK, At: came + reset - int64(took)})
		e.Free()
		if e := ask(); !e.Denied {
			t.Errorf("%s: a unit is refunded by a response that began when it had drained", kind)
		}
	}
}
