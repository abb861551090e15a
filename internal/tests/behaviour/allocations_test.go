package behaviour_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// What a request allocates is bounded. docs/internals/costs.md has these figures.
func TestAllocationsOfARequest(t *testing.T) {
	const (
		admits = "limit 1000000000/30d\n"
		denies = "limit 0/30d\n"
	)
	for i, test := range []struct {
		name, options, zone string
		most                float64
	}{
		{"admitted", "headers off", admits, 1},
		{"admitted, one bucket of all", "headers off", admits + "algorithm token_bucket\nkey all", 1},
		{"admitted by a header", "headers off", admits + "key {http.request.header.X-Api-Key}", 1},
		{"admitted by host and address", "headers off", admits + "key {http.request.host}+{client_ip}", 1},
		{"admitted by two limits", "headers off", "limit 1000000000/30d 1000000000/60d", 2},
		{"admitted, in shadow mode", "headers off", admits + "enforce off", 1},
		{"admitted, by a share", "headers off", admits + "enforce 50%", 1},
		{"admitted, would be denied", "headers off", denies + "enforce off", 3},
		{"admitted, but for an exception", "headers off", admits + "except method OPTIONS", 1},
		{"admitted by the default of a limit", "headers off", "limit {http.vars.plan}/30d\nlimit_default 1000000000/30d", 1},
		{"admitted by a limit from a variable", "headers off", "limit {http.vars.number}/30d\nlimit_default 1/30d", 1},
		{"admitted by a limit from map", "headers off", "limit {number}/30d\nlimit_default 1/30d", 2},
		{"admitted by a limit from a variable, ietf headers", "headers ietf", "limit {http.vars.number}/30d\nlimit_default 1/30d", 4},
		{"admitted, ietf headers", "headers ietf", admits, 3},
		{"denied", "headers off", denies, 3},
		{"denied, ietf headers", "headers ietf", denies, 3},
		{"denied, all headers", "headers ietf kong github", denies, 3},
		{"denied by two limits", "headers ietf", "limit 0/30d 0/60d\n", 4},
	} {
		h := sitetest.NewSite(t, &ratelimit.App{}, test.options+"\n"+sitetest.ZoneBlock(fmt.Sprint("allocates-", i), test.zone)).Handler
		if n := allocations(h); n > test.most {
			t.Errorf("%s: %v allocations, want at most %v", test.name, n, test.most)
		}
	}
}

// allocations is how often a handler allocates for a request. The least of many counts: with -race,
// what is to be used again is sometimes not found.
func allocations(h *ratelimit.Handler) float64 {
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	r.Header.Set("X-Api-Key", "secret")
	repl := caddy.NewReplacer()
	r = caddyhttp.PrepareRequest(r, repl, httptest.NewRecorder(), &caddyhttp.Server{})
	repl.Map(func(name string) (any, bool) { return "1000000000", name == "number" })
	fresh := *repl
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "192.0.2.1")
	caddyhttp.SetVar(r.Context(), "number", "1000000000")
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	w := sitetest.Sink{}
	fewest := 1e9
	for range 50 {
		fewest = min(fewest, testing.AllocsPerRun(1, func() {
			clear(w)
			*repl = fresh // as for a request of its own
			_ = h.ServeHTTP(w, r, next)
		}))
	}
	return fewest
}

// What a key takes in memory is bounded, whatever the limit.
func TestBytesOfAKey(t *testing.T) {
	finely := func(buckets int) algorithms.Params {
		return algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 1 << 40, Window: 720 * time.Hour, SubWindows: buckets}
	}
	for _, test := range []struct {
		name  string
		bytes float64
		most  float64
	}{
		{"two counters", bytesOfAKey[algorithms.WindowState](finely(1), 0), 140},
		{"two counters, synced", bytesOfAKey[algorithms.WindowState](finely(1), time.Second), 200},
		{"a bucket", bytesOfAKey[algorithms.BucketState](algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1 << 40, Window: 720 * time.Hour}, 0), 200},
		{"29 slices beyond the first", bytesOfAKey[algorithms.WindowState](finely(30), 0) - bytesOfAKey[algorithms.WindowState](finely(1), 0), 29*12 + 60},
	} {
		if test.bytes > test.most {
			t.Errorf("%s: %.0f bytes a key, want at most %.0f", test.name, test.bytes, test.most)
		}
		t.Logf("%s: %.1f bytes a key", test.name, test.bytes)
	}
}

func bytesOfAKey[S any](alg algorithms.Params, rate time.Duration) float64 {
	// beyond max_keys counters are shared
	const keyCount, maxKeys = 100_000, 200_000
	before := sitetest.HeapBytes()
	tab := table.New[S](alg.Kind, maxKeys)
	tab.Configure(table.SyncConfig{Params: alg, Interval: rate}, maxKeys)
	for i := range keyCount {
		raw := []byte{byte(i), byte(i >> 8), byte(i >> 16)}
		tab.Take(alg.Compile(), keys.KeyOf(raw), raw, clock.Now(), 1, 0)
	}
	each := float64(sitetest.HeapBytes()-before) / keyCount
	runtime.KeepAlive(tab)
	return each
}
