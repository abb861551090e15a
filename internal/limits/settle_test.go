package limits

import (
	"fmt"
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

// What a response settles after a reload has removed its zone here is told to the nodes that still
// have it, whoever decides there.
func TestALateSettlementIsTold(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, rate := range []config.SyncRate{config.SyncRate(50 * time.Millisecond), config.Strict} {
		s := one("late"+rate.String(), 10, rate)
		s.CountResponses = &caddyhttp.ResponseMatcher{StatusCode: []int{http.StatusUnauthorized}}
		redis := remote(t, server)
		z := newZone(t, s, redis)
		redis.Replicator.Start()
		z.AllLimits[0].Configure(time.Minute, redis)
		e, err := Evaluate([]*Zone{z}, request("x"), clock.Now())
		if err != nil || e.Denied {
			t.Fatalf("denied: %t, %v", e.Denied, err)
		}
		h := e.Hold()
		e.Free()
		client := server.Client()
		defer client.Close()
		// A sum is "total stamp end epoch reserved total…".
		counted := func() (spent, reserved string) {
			found, _ := client.Keys(t.Context(), "*"+s.Name+"*").Result()
			if len(found) != 1 {
				return "", ""
			}
			sum, _ := client.HGet(t.Context(), found[0], "sum").Result()
			_, _ = fmt.Sscan(sum, &spent, new(string), new(string), new(string), &reserved)
			return spent, reserved
		}
		redistest.Eventually(t, "Redis has the reserved unit", func() bool { spent, reserved := counted(); return spent == "1" && reserved == "1" })
		z.AllLimits[0].Detach(redis)
		h.Replay(Response{Status: http.StatusOK})
		redistest.Eventually(t, "Redis has it back", func() bool { spent, reserved := counted(); return spent == "0" && reserved == "0" })
	}
}
