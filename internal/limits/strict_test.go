package limits

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// paths is a matcher that leaves what it has found in {re.1}, as every other one of its kind does.
func paths(t *testing.T, pattern string) caddyhttp.MatcherSets {
	t.Helper()
	m := caddyhttp.MatchPathRE{MatchRegexp: caddyhttp.MatchRegexp{Pattern: pattern}}
	if err := m.Provision(caddy.Context{}); err != nil {
		t.Fatal(err)
	}
	return caddyhttp.MatcherSets{{&m}}
}

// passes reports whether no zone denies a request of a path, or would where it is not enforced.
func passes(t *testing.T, zones []*Zone, path string) bool {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://example.com"+path, nil)
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), &caddyhttp.Server{})
	e, err := Evaluate(zones, r, clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Free()
	return !e.Denied && e.WouldDeny.Zone == ""
}

// A zone's key and its limit are what its own matchers have found, whatever those of the zones
// beside it find: in every mode, enforced or not, and whichever of them is named first.
func TestAZoneReadsWhatItsOwnMatchersFound(t *testing.T) {
	redis := remote(t, redistest.Start(t))
	number := 0
	try := func(rate config.SyncRate, share float64, of, other [2]string, path func(i int) string, want int) {
		t.Helper()
		number++
		z := one(fmt.Sprint("found ", number, of[0]), 3, rate)
		z.Key, z.Enforce = "{http.regexp.1}", config.Enforce(share)
		beside := one(fmt.Sprint("found ", number, other[0]), 1000, rate)
		if path(0)[1] == 'n' { // the number is in the path
			z.Key, z.Limits[0].From = "all", "{http.regexp.1}"
		}
		zones := []*Zone{newZone(t, z, redis), newZone(t, beside, redis)}
		zones[0].Matchers, zones[1].Matchers = paths(t, of[1]), paths(t, other[1])
		if of[0] > other[0] {
			zones[0], zones[1] = zones[1], zones[0]
		}
		Arrange(zones)
		passed := 0
		for i := range 8 {
			if passes(t, zones, path(i)) {
				passed++
			}
		}
		if passed != want {
			t.Errorf("sync_rate %s, enforced %v, zone %v beside %v: %d of 8 requests like %s pass, want %d", rate, share, of, other, passed, path(0), want)
		}
	}
	for _, rate := range []config.SyncRate{config.Local, config.Strict} {
		for _, share := range []float64{1, 0} {
			for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
				tenant, rest, fixed := [2]string{names[0], `^/t/([^/]+)`}, [2]string{names[1], `^/t/[^/]+/(.*)`}, [2]string{names[1], `^/(t)/`}
				try(rate, share, tenant, rest, func(i int) string { return fmt.Sprint("/t/acme/", i) }, 3)
				try(rate, share, tenant, fixed, func(i int) string { return fmt.Sprint("/t/", i, "/x") }, 8)
				brings, next := [2]string{names[0], `^/n/([0-9]+)`}, [2]string{names[1], `^/n/[0-9]+/(.*)`}
				try(rate, share, brings, next, func(int) string { return "/n/5/2" }, 5)
			}
		}
	}
}

// That a request makes no key is told of a zone that is asked.
func TestAnEmptyKeyOfAZoneThatIsNotAsked(t *testing.T) {
	redis := remote(t, redistest.Start(t))
	core, logs := observer.New(zapcore.WarnLevel)
	empty := one("empty", 9, config.Strict)
	empty.Key, empty.EmptyKey = keyOfRequests, config.EmptySkip
	z, err := NewZone(ZoneOptions{Settings: empty, Redis: redis, Logger: zap.New(core), Once: new(warning.Once)})
	if err != nil {
		t.Fatal(err)
	}
	defer z.Release()
	if passes(t, []*Zone{newZone(t, one("spent", 0, config.Local), nil), z}, "/") || logs.Len() != 0 {
		t.Errorf("denied before: %d lines, want none", logs.Len())
	}
	if !passes(t, []*Zone{z}, "/") || logs.Len() != 1 {
		t.Errorf("asked alone: %d lines, want one", logs.Len())
	}
}

// A request that one zone denies hears of the wait of another one that Redis decides for and that
// was not asked, as long as this node knows it: by what Redis last said, in every algorithm.
func TestADenialHearsOfZonesThatAreNotAsked(t *testing.T) {
	redis := remote(t, redistest.Start(t))
	ask := func(zones []*Zone) *Evaluation { // and don't wait in a queue
		e, err := Evaluate(zones, request("x"), clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	for i, kind := range kinds {
		for _, rate := range []config.SyncRate{config.Local, config.Strict} {
			long := one(fmt.Sprint("a long ", i, rate), 2, config.Strict)
			long.Kind, long.Queue = kind, 1
			short := one(fmt.Sprint("b short ", i, rate), 2, rate)
			short.Kind, short.Limits[0].Window, short.Key = algorithms.TokenBucket, time.Hour, keyOfRequests
			shadow := long
			shadow.Name, shadow.Enforce = fmt.Sprint("c shadow ", i, rate), config.Enforce(0)
			shadow.Limits = []config.Rate{{Limit: 2, Window: 30 * 24 * time.Hour}}
			zones := []*Zone{newZone(t, long, redis), newZone(t, short, redis), newZone(t, shadow, redis)}
			Arrange(zones)
			for range 2 {
				ask(zones).Free()
			}
			alone := ask([]*Zone{zones[slices.IndexFunc(zones, func(z *Zone) bool { return z.Name == long.Name })]})
			e := ask(zones)
			// A log knows it to a sixteenth of the window.
			if got, least := e.Denial.Wait, max(alone.Denial.Wait, time.Hour/2); !alone.Denied || (got-least).Abs() > 48*time.Hour {
				t.Errorf("%s beside a zone with sync_rate %s: denied for %s by %q, want %s", kind, rate, got, e.Denial.Zone, least)
			}
			e.Free()
			alone.Free()
		}
	}
}
