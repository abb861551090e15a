package limits

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// In the place of an overridden limit, burst and queue keep their ratio to it, and an override is
// about the limit with its window.
func TestOverridesKeepRatios(t *testing.T) {
	for _, test := range []struct{ burst, queue, limit, to, wantBurst, wantQueue int64 }{
		{10, 0, 100, 1000, 100, 0},
		{10, 4, 100, 50, 5, 2},
		{10, 4, 100, 1, 1, 1},
		{10, 4, 100, 0, 1, 1},
		{10, 4, 0, 100, 10, 4},
		{0, 0, 100, 1000, 0, 0},
		{1 << 50, 0, 1, 1 << 50, 1 << 53, 0},
	} {
		month, year := config.Rate{Limit: test.limit, Window: 30 * 24 * time.Hour}, config.Rate{Limit: 7, Window: 365 * 24 * time.Hour}
		z, err := NewZone(ZoneOptions{
			Settings: config.Settings{
				Name: "ratio", Key: "all", Kind: algorithms.TokenBucket, Limits: []config.Rate{month, year}, Burst: test.burst, Queue: test.queue,
				SubWindows: 1, MaxKeys: 100, IPv4Prefix: 32, IPv6Prefix: 64, SyncRate: config.Local,
			},
			Sweep: time.Minute, Logger: zap.NewNop(), Once: new(warning.Once),
		})
		if err != nil {
			t.Fatal(err)
		}
		o := &control.Override{Rates: []config.Rate{{Limit: test.to, Window: 30 * 24 * time.Hour}}}
		all, _ := z.limitsOf(nil, httptest.NewRequest("GET", "/", nil), o, true)
		p := all[0].Params()
		if p.Limit != test.to || p.Burst != test.wantBurst || p.Queue != test.wantQueue || all[1].Rate != year || all[1].IsOverridden {
			t.Errorf("%+v: %+v and %+v, want burst %d and queue %d, and the other limit as it is", test, p, all[1].Rate, test.wantBurst, test.wantQueue)
		}
		if z.AllLimits[0].Rate != month {
			t.Error("the zone's own limit has changed")
		}
		if all, _ := z.limitsOf(nil, httptest.NewRequest("GET", "/", nil), &control.Override{Unlimited: true}, true); len(all) > 0 {
			t.Errorf("unlimited leaves %d limits", len(all))
		}
		z.Release()
	}
}

// A request of a key that an operator denies is counted and logged once all zones are asked: of one
// that ends with an error before, nothing is left.
func TestBarredRequestThatFails(t *testing.T) {
	for _, share := range []float64{0, 1} {
		core, logs := observer.New(zapcore.InfoLevel)
		limits := []config.Rate{{Limit: 9, Window: 30 * 24 * time.Hour}}
		zones := arranged(t,
			config.Settings{Name: "barred-first", Key: keyOfRequests, Limits: limits, Enforce: config.Enforce(share)},
			config.Settings{Name: "barred-then", Key: "all", Limits: limits})
		first, err := NewZone(ZoneOptions{Settings: zones[0].Settings, Logger: zap.New(core), Once: new(warning.Once), Metrics: true})
		if err != nil {
			t.Fatal(err)
		}
		defer first.Release()
		zones[0] = first
		r := request("a")
		raw, _, _ := first.AppendKey(nil, r, reqkey.Vars(r))
		id := keys.IDOf(raw)
		set := control.Change{Target: control.Target{Zone: "barred-first", Key: &id}, Body: control.Body{Limit: control.Deny}, For: time.Hour}
		if _, err := ControlOf(nil, "").Change(context.Background(), set); err != nil {
			t.Fatal(err)
		}
		failed := errors.New("failed")
		if share == 0 { // zones in shadow mode come after all that decide for themselves
			zones[1].SyncRate, zones[1].Redis = config.Strict, new(Redis)
		}
		zones[1].Matchers = caddyhttp.MatcherSets{{matcherFunc(func(*http.Request) (bool, error) { return false, failed })}}
		told := func() int { return logs.FilterMessageSnippet("rate limit exceeded").Len() }
		if e, err := Evaluate(zones, request("a"), clock.Now()); err == nil || told() != 0 {
			t.Errorf("share %v: a request that a matcher fails for: %v, %v, and %d lines, want an error and no line", share, e, err, told())
		}
		failed = nil
		e := decide(t, zones, "a")
		if e.Denied != (share == 1) || (e.WouldDeny.Zone != "") != (share == 0) || told() != 1 {
			t.Errorf("share %v: the next one: denied %t, would be by %q, with %d lines, want one of them and one line", share, e.Denied, e.WouldDeny.Zone, told())
		}
		e.Free()
		if e := decide(t, zones, "b"); e.Denied || e.WouldDeny.Zone != "" || told() != 1 {
			t.Errorf("share %v: one of another key: denied %t, would be by %q, with %d lines", share, e.Denied, e.WouldDeny.Zone, told())
		}
	}
}
