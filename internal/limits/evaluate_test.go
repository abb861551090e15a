package limits

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// arranged are the zones of a handler, which no configuration has.
func arranged(t *testing.T, all ...config.Settings) (zones []*Zone) {
	t.Helper()
	for _, s := range all {
		s.SubWindows, s.SyncRate, s.MaxKeys, s.IPv4Prefix, s.IPv6Prefix = 1, config.Local, 1000, 32, 64
		z, err := NewZone(ZoneOptions{Settings: s, Logger: zap.NewNop(), Once: new(warning.Once)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(z.Release)
		zones = append(zones, z)
	}
	Arrange(zones)
	return zones
}

// request is a request with a header K, as a server prepares it.
func request(k string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	r.Header.Set("K", k)
	return caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), &caddyhttp.Server{})
}

// meetAll asks zones that match as far as their queues are read.
func meetAll(e *Evaluation, zones []*Zone, r *http.Request) {
	for _, z := range zones {
		e.checks = e.addCheck(e.checks, z, r)
		e.ask(r)
	}
}

// peeks is how many zones are still to be entered.
func peeks(e *Evaluation) (n int) {
	for i := range e.checks {
		if e.checks[i].decision == peeked {
			n++
		}
	}
	return n
}

// A slot that was taken before another queue denied is freed only if nobody stands behind it; no
// other request can start sooner for that.
func TestASlotIsKeptForThoseBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zones := arranged(t,
			config.Settings{Name: "a", Key: "all", Kind: algorithms.LeakyBucket, Queue: 20, Limits: []config.Rate{{Limit: 10, Window: time.Second}}},
			config.Settings{Name: "b", Key: "{http.request.header.K}", Kind: algorithms.LeakyBucket, Limits: []config.Rate{{Limit: 1, Window: time.Hour}}},
		)
		var mu sync.Mutex
		var begun []time.Time
		admits := func(k string) {
			e, err := Evaluate(zones, request(k), clock.Now())
			if err != nil || e.Denied {
				t.Errorf("%s: %v, denied %v", k, err, e.Denied)
				return
			}
			defer e.Free()
			if err := e.Enter(t.Context()); err != nil {
				t.Errorf("%s: %v", k, err)
			}
			mu.Lock()
			defer mu.Unlock()
			begun = append(begun, time.Now())
		}
		admits("first")
		late := &Evaluation{Now: clock.Now()} // both queues have room for it,
		meetAll(late, zones, request("x"))
		if late.Denied || peeks(late) != 2 {
			t.Fatalf("the queues are read: denied %v, %d to enter", late.Denied, peeks(late))
		}
		admits("x")
		late.enterQueues() // and now that of x has none
		if !late.Denied {
			t.Fatal("a second request of x has a slot in a queue for one")
		}
		var wg sync.WaitGroup
		wg.Go(func() { admits("behind") })
		synctest.Wait()
		late.rollBack(endsDenied, true)
		admits("last")
		wg.Wait()
		slices.SortFunc(begun, time.Time.Compare)
		if len(begun) != 4 {
			t.Fatalf("%d requests start, want 4", len(begun))
		}
		for i := range begun[1:] {
			if got := begun[i+1].Sub(begun[i]); got < 100*time.Millisecond {
				t.Errorf("requests %d and %d start %v from each other, want 100ms at least", i, i+1, got)
			}
		}
	})
}

// A request that has waited for a Redis in vain is counted when it is decided, not when it came: by
// then others of its key may have been, and a Take before theirs would pass for a clock set back,
// after which time drains twice.
func TestARequestThatWaitedForRedisIsDecidedNow(t *testing.T) {
	server := redistest.Start(t)
	proxy := faultproxy.Start(t, server.Addr)
	server.Addr = proxy.Addr
	client := server.Client()
	client.Options().ContextTimeoutEnabled, client.Options().ReadTimeout, client.Options().DialTimeout = true, time.Hour, time.Hour
	defer client.Close()
	const limit, window = 10, 60 * 24 * time.Hour
	for _, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA} {
		proxy.Set(faultproxy.Blackhole)
		redis := BorrowRedis(client, RedisOptions{Namespace: "test", Timeout: time.Hour, StrictTimeout: time.Hour, Logger: zap.NewNop()})
		z, err := NewZone(ZoneOptions{
			Settings: config.Settings{
				Name: kind.String(), Key: "all", Kind: kind, Limits: []config.Rate{{Limit: limit, Window: window}}, SubWindows: 1,
				MaxKeys: 100, IPv4Prefix: 32, IPv6Prefix: 64, SyncRate: config.Strict,
			},
			Redis: redis, Logger: zap.NewNop(), Once: new(warning.Once),
		})
		if err != nil {
			t.Fatal(err)
		}
		r := request("x")
		raw, _, _ := z.AppendKey(nil, r, reqkey.Vars(r))
		l, key := &z.AllLimits[0], keys.KeyOf(raw)
		swallowed := proxy.Requests()
		var wg sync.WaitGroup
		wg.Go(func() {
			e, err := Evaluate([]*Zone{z}, request("x"), clock.Now())
			if err != nil || !e.Denied {
				t.Errorf("%s: a request whose limit was spent while it waited: %v, want a denial", kind, err)
				return
			}
			e.Free()
		})
		redistest.Eventually(t, "the request waits for Redis", func() bool { return l.Table.Keys() == 1 && proxy.Requests() > swallowed })
		clock.Advance(window / 2)
		defer clock.Advance(-window / 2)
		admitted := 0
		for range 2 * limit { // decided without Redis meanwhile
			if l.Take(key, raw, clock.Now(), 1, 0).Allowed {
				admitted++
			}
		}
		proxy.Set(faultproxy.Reset)
		wg.Wait()
		for range limit {
			if l.Take(key, raw, clock.Now(), 1, 0).Allowed {
				admitted++
			}
		}
		if admitted != limit {
			t.Errorf("%s: %d admitted beside a request that waited for Redis, want %d", kind, admitted, limit)
		}
		z.Release()
		redis.Close()
	}
}
