package limits

import (
	"fmt"
	"math"
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
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
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

// besideSpent asks a zone in which Redis decides beside one whose limit is spent, which denies
// first, and returns how long the denial says that a request of a cost waits, 0 where it is as long
// as the spent zone says alone.
func besideSpent(t *testing.T, spent, dear *Zone, cost int) time.Duration {
	t.Helper()
	r := request("x")
	r.Header.Set("N", fmt.Sprint(cost))
	alone, err := Evaluate([]*Zone{spent}, r, clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Free()
	e, err := Evaluate([]*Zone{spent, dear}, r, clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Free()
	if _, asked := e.Of(dear); !e.Denied || asked {
		t.Fatalf("%s: denied %t, asked %t; want a denial by the other zone alone", dear.Name, e.Denied, asked)
	}
	if e.Denial.Wait-alone.Denial.Wait < time.Minute {
		return 0
	}
	return e.Denial.Wait
}

// dearer asks a zone alone, and returns how long it has a request of a cost wait, 0 if it admits
// it. Its response costs settles units, or is still under way where that is negative.
func dearer(t *testing.T, z *Zone, cost, settles int) time.Duration {
	t.Helper()
	r := request("x")
	r.Header.Set("N", fmt.Sprint(cost))
	e, err := Evaluate([]*Zone{z}, r, clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Free()
	if h := e.Hold(); h != nil && !e.Denied && settles >= 0 {
		h.Replay(Response{Status: http.StatusOK, Header: http.Header{"Cost": {fmt.Sprint(settles)}}})
	}
	return e.Denial.Wait
}

// A client that one zone denies and that waits as long as it is told is admitted by another one
// that Redis decides for as well, though that was not asked: whatever the request costs, and
// whatever those before it have cost. What responses may still refund is none to wait for.
func TestADenialHearsWhatARequestCostsInZonesThatAreNotAsked(t *testing.T) {
	redis := remote(t, redistest.Start(t))
	t.Cleanup(redis.Close)
	spentIs := one("spent", 1, config.Local)
	spentIs.Limits[0].Window = month
	spent := newZone(t, spentIs, nil)
	dearer(t, spent, 1, 0)
	for _, kind := range settling {
		zone := func(what string) *Zone {
			s := one(what+" "+kind.String(), 10, config.Strict)
			s.Kind, s.Key, s.Limits[0].Window, s.Enforce = kind, keyOfRequests, 12*month, config.Enforce(1)
			if what == "cost" {
				s.Cost = config.Cost{Terms: []config.CostTerm{{Units: &config.Amount{From: "{http.request.header.N}"}}}}
			} else {
				s.ResponseCost = config.ResponseCost{Terms: []config.ResponseTerm{{Header: "Cost"}}}
			}
			z := newZone(t, s, redis)
			for _, l := range z.AllLimits {
				l.Table.Configure(table.SyncConfig{Params: l.Params()}, 100)
			}
			return z
		}
		same := func(what string, got, want time.Duration) {
			t.Helper() // a log knows it to a sixteenth of its window
			if (got-want).Abs() > month || (got == 0) != (want == 0) {
				t.Errorf("%s: %s: told to wait %s, want %s", kind, what, got, want)
			}
		}
		z := zone("cost")
		dearer(t, z, 7, 0)
		same("1 where 3 are left", besideSpent(t, spent, z, 1), 0)
		same("7 where 3 are left", besideSpent(t, spent, z, 7), dearer(t, z, 7, 0))
		dearer(t, z, 3, 0)
		same("1 where nothing is left", besideSpent(t, spent, z, 1), dearer(t, z, 1, 0))

		z = zone("response_cost")
		for range 10 {
			dearer(t, z, 1, -1)
		}
		same("all is reserved", besideSpent(t, spent, z, 1), 0)

		z = zone("response_cost, settled")
		dearer(t, z, 1, 25)
		told := time.Duration(0)
		redistest.Eventually(t, kind.String()+": a denial tells of what a response has cost", func() bool {
			told = besideSpent(t, spent, z, 1)
			return told > 0
		})
		same("a response has cost 25 of 10", told, dearer(t, z, 1, -1))
	}
}

// What a zone in which Redis decides has granted, and got back as another one denied, is none to
// wait for later.
func TestADenialHearsOfARefund(t *testing.T) {
	server := redistest.Start(t)
	redis, another := remote(t, server), remote(t, server)
	t.Cleanup(redis.Close)
	t.Cleanup(another.Close)
	for _, kind := range settling {
		first, denies := one("first "+kind.String(), 1, config.Strict), one("denies "+kind.String(), 1, config.Strict)
		first.Kind, first.Limits[0].Window = kind, 12*month
		refunds, spent := newZone(t, first, redis), newZone(t, denies, redis)
		k, _ := spent.KeyOf(request("x"))
		spendElsewhere(t, spent, another, k.Raw, 1)
		e := decideAll(t, []*Zone{refunds, spent})
		if o, asked := e.Of(refunds); !e.Denied || !asked || o.Denied {
			t.Fatalf("%s: denied %t, and the other zone: asked %t, denies %t; want a denial by the zone that is asked last", kind, e.Denied, asked, o.Denied)
		}
		e.Free()
		redistest.Eventually(t, kind.String()+": the unit is there again", func() bool {
			e := decideAll(t, []*Zone{spent, refunds})
			defer e.Free()
			return e.Denial.Wait <= 2*month
		})
	}
}

// decideAll asks zones for a request.
func decideAll(t *testing.T, zones []*Zone) *Evaluation {
	t.Helper()
	e, err := Evaluate(zones, request("x"), clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A request that one zone in which Redis decides never admits is told that, and no wait, whichever
// other zone denies it as well.
func TestTooLargeIsForGoodBesideAnotherDenial(t *testing.T) {
	redis := remote(t, redistest.Start(t))
	t.Cleanup(redis.Close)
	for _, rate := range []config.SyncRate{config.Local, config.Strict} {
		spent := newZone(t, one("spent "+fmt.Sprint(rate), 1, rate), redis)
		dearer(t, spent, 1, 0)
		s := one("small "+fmt.Sprint(rate), 10, config.Strict)
		s.Cost, s.Enforce = config.Cost{Terms: []config.CostTerm{{Units: &config.Amount{Number: 50}}}}, config.Enforce(1)
		e := decideAll(t, []*Zone{spent, newZone(t, s, redis)})
		if d := e.Denial; !e.Denied || d.Reason != answer.TooLarge || d.Wait != 0 || d.Zone != s.Name {
			t.Errorf("beside a zone with sync_rate %s: denied %t by %q for reason %s, wait %s; want one that is too large, for good", rate, e.Denied, d.Zone, d.Reason, d.Wait)
		}
		e.Free()
	}
}

// Zones are asked in the order of what is left of them: slots alone have no limit, and come after
// all that have one.
func TestTheOrderOfZones(t *testing.T) {
	ranks := []int64{
		rankOf(0, 1, false), noCounterRank, rankOf(1, 1, false), rankOf(9, 1, false), rankOf(1<<62, 1, false), rankOf(1, 1, true), rankOf(math.MaxInt64, 1, true),
	}
	if !slices.IsSorted(ranks) || rankOf(math.MaxInt64, 1, false) != ranks[4] || len(slices.Compact(slices.Clone(ranks))) != len(ranks) {
		t.Errorf("%d, want ranks that grow", ranks)
	}
}
