package limits

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

const month = 30 * 24 * time.Hour

// banning is a zone that bans an address with its first denied request.
func banning(t *testing.T, limit int64) *Zone {
	t.Helper()
	z, err := NewZone(ZoneOptions{
		Settings: config.Settings{
			Name: "banning", Key: reqkey.Default, Limits: []config.Rate{{Limit: limit, Window: month}}, Ban: config.Ban{For: month},
			SubWindows: 1, MaxKeys: 100, IPv4Prefix: 32, IPv6Prefix: 64, SyncRate: config.Local, Enforce: config.Enforce(1),
		},
		Namespace: t.Name(), Logger: zap.NewNop(), Once: new(warning.Once),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(z.Release)
	return z
}

// asks sends a request from an address.
func asks(t *testing.T, z *Zone, address string) (denied bool, why answer.Reason, o Outcome) {
	t.Helper()
	e, err := Evaluate([]*Zone{z}, prepared(address, false), clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Free()
	o, _ = e.Of(z)
	return e.Denied, e.Denial.Reason, o
}

// bans has a zone ban an address.
func bans(t *testing.T, z *Zone, address string) {
	t.Helper()
	for range z.Limits[0].Limit {
		asks(t, z, address)
	}
	if denied, why, _ := asks(t, z, address); !denied || why != answer.Banned {
		t.Fatalf("a request beyond the limit: denied %t for reason %s, want one with which a ban begins", denied, why)
	}
}

// enforced says for which share of keys zones are enforced, of one or of all where that is "".
func enforced(t *testing.T, namespace, zone string, share *float64) {
	t.Helper()
	change := control.Change{Target: control.Target{Zone: zone}, Body: control.Body{Share: share}, For: time.Hour}
	if _, err := ControlOf(nil, namespace).Change(t.Context(), change); err != nil {
		t.Fatal(err)
	}
}

// A key that the zone is not enforced for is not denied by its ban, whoever has said so and of how
// many zones. The ban holds again when that ends. A request that it would deny counts nowhere.
func TestNoBanWhereAZoneIsNotEnforced(t *testing.T) {
	const address = "198.51.100.7"
	z := banning(t, 1)
	bans(t, z, address)
	none := 0.0
	for _, zone := range []string{"", z.Name} {
		enforced(t, z.Namespace, zone, &none)
		if denied, why, o := asks(t, z, address); denied || !o.Shadow || !o.Outright || o.Rest <= 0 {
			t.Errorf("of zone %q nothing is enforced: denied %t (%s), shadow %t, closed %t for %v; want it admitted, and told that the ban would deny it",
				zone, denied, why, o.Shadow, o.Outright, o.Rest)
		}
		enforced(t, z.Namespace, zone, nil)
		if denied, why, _ := asks(t, z, address); !denied || why != answer.Banned {
			t.Errorf("zone %q is enforced again: denied %t for reason %s, want %s", zone, denied, why, answer.Banned)
		}
	}
	if n := z.Banning.Shadow.Count(clock.Now()); n != 0 {
		t.Errorf("%d bans were noted while nothing was enforced, want none: no limit was asked", n)
	}
}

// settles are zones whose responses decide what a request costs.
func settles(kind algorithms.Kind) (all []config.Settings) {
	base := one("settles", 5, config.Local)
	base.Kind, base.Limits[0].Window, base.Enforce, base.Key = kind, month, config.Enforce(1), keyOfRequests
	byStatus, byCost, both := base, base, base
	byStatus.CountResponses = &caddyhttp.ResponseMatcher{StatusCode: []int{http.StatusUnauthorized}}
	byCost.ResponseCost = config.ResponseCost{Terms: []config.ResponseTerm{{Header: "Cost"}}}
	both.CountResponses, both.ResponseCost = byStatus.CountResponses, byCost.ResponseCost
	return []config.Settings{byStatus, byCost, both}
}

// settled checks what a zone has left for a key, with nothing reserved.
func settled(t *testing.T, z *Zone, key string, want int64, what string) {
	t.Helper()
	if n := z.AllLimits[0].Table.Reservations().Len(); n != 0 {
		t.Errorf("%s: %s: %d keys have something reserved, want none", what, z.Kind, n)
	}
	if got := left(z, key); got != want {
		t.Errorf("%s: %s: %d are left, want %d", what, z.Kind, got, want)
	}
}

// settling are the kinds of limits whose units responses may settle.
var settling = []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow, algorithms.SlidingLog, algorithms.TokenBucket, algorithms.GCRA}

// Whatever ends a request before its handler runs: nothing of it is spent or reserved in a zone
// that had admitted it, and its slot is free.
func TestNothingIsReservedOfARequestThatEnds(t *testing.T) { synctest.Test(t, nothingReserved) }

func nothingReserved(t *testing.T) {
	denies := config.Rate{Limit: 0, Window: 2 * month}
	fails := caddyhttp.MatcherSets{{matcherFunc(func(*http.Request) (bool, error) { return false, errors.New("failed") })}}
	spent := one("denies", 0, config.Local)
	spent.Enforce = config.Enforce(1)
	for _, test := range []struct {
		what   string
		change func(*config.Settings)
		others func(z *Zone) []*Zone
	}{
		{"another zone denies", nil, func(z *Zone) []*Zone { return []*Zone{z, newZone(t, spent, nil)} }},
		{"a zone before it denies", nil, func(z *Zone) []*Zone { return []*Zone{newZone(t, spent, nil), z} }},
		{"another limit of it denies", func(s *config.Settings) { s.Limits = append(s.Limits, denies) }, nil},
		{"another zone's matcher fails", nil, func(z *Zone) []*Zone {
			other := newZone(t, spent, nil)
			other.Matchers = fails
			return []*Zone{z, other}
		}},
		{"it would be denied in shadow mode", func(s *config.Settings) {
			s.Limits, s.Enforce = append(s.Limits, denies), config.Enforce(0)
		}, nil},
		{"another zone denies beside one in shadow mode", func(s *config.Settings) { s.Enforce = config.Enforce(0) }, func(z *Zone) []*Zone {
			return []*Zone{z, newZone(t, spent, nil)}
		}},
	} {
		for _, kind := range settling {
			for i, s := range settles(kind) {
				s.Name, s.Concurrent = fmt.Sprint(test.what, kind, i), 1
				if test.change != nil {
					test.change(&s)
				}
				z := newZone(t, s, nil)
				zones := []*Zone{z}
				if test.others != nil {
					zones = test.others(z)
				}
				k, _ := z.KeyOf(request("x"))
				// by others, which stay spent
				z.AllLimits[0].Take(keys.KeyOf(k.Raw), k.Raw, clock.Now(), 2, 0)
				if e, err := Evaluate(zones, request("x"), clock.Now()); err == nil {
					if n := z.Slots.Table.InUse(); n != 0 {
						t.Errorf("%s: %s: %d slots are taken while the answer is written, want none", test.what, kind, n)
					}
					if h := e.Hold(); h != nil { // of those that are admitted, in shadow mode
						h.Replay(Response{Status: http.StatusUnauthorized, Header: http.Header{"Cost": {"1"}}})
					}
					e.Free()
				}
				settled(t, z, "x", 3, test.what)
				if n := z.Slots.Table.InUse(); n != 0 {
					t.Errorf("%s: %s: %d slots are taken, want none", test.what, kind, n)
				}
			}
		}
	}
}

// An admitted request holds its slot until its handler has returned, and what it has reserved until
// its response says what that was.
func TestAnAdmittedRequestSettlesOnce(t *testing.T) { synctest.Test(t, admittedSettles) }

func admittedSettles(t *testing.T) {
	for _, kind := range settling {
		for _, test := range []struct {
			status int
			cost   string
			left   [4]int64 // by status, by cost, by both, by nothing
		}{
			{http.StatusOK, "3", [4]int64{5, 2, 5, 4}}, {http.StatusUnauthorized, "3", [4]int64{4, 2, 2, 4}},
			{http.StatusUnauthorized, "0", [4]int64{4, 5, 5, 4}}, {0, "3", [4]int64{4, 4, 4, 4}},
		} {
			all := settles(kind)
			plain := all[0]
			plain.CountResponses = nil
			for i, s := range append(all, plain) {
				s.Name, s.Concurrent = fmt.Sprint(kind, test, i), 1
				z := newZone(t, s, nil)
				e := decide(t, []*Zone{z}, "x")
				h := e.Hold()
				e.Free()
				if h == nil {
					t.Errorf("%s: Hold = nil of a request that has a slot", kind)
					continue
				}
				if n, slots := z.AllLimits[0].Table.Reservations().Len(), z.Slots.Table.InUse(); (n == 1) != s.Settles() || slots != 1 {
					t.Errorf("%s: of a request that runs %d keys have something reserved and %d slots are taken; want that one has: %t, and 1", kind, n, slots, s.Settles())
				}
				h.begin(Response{Status: test.status, Header: http.Header{"Cost": {test.cost}}})
				settled(t, z, "x", test.left[i], "the response begins")
				if n := z.Slots.Table.InUse(); n != 1 {
					t.Errorf("%s: %d slots are taken when the response begins, want 1", kind, n)
				}
				h.end()
				settled(t, z, "x", test.left[i], "the handler has returned")
				if n := z.Slots.Table.InUse(); n != 0 {
					t.Errorf("%s: %d slots are taken when the handler has returned, want none", kind, n)
				}
			}
		}
	}
}

// In zones in which Redis decides a request that ends has nothing reserved there or on this node.
// The one that denies is asked last, as this node has not heard what another one has spent in it.
func TestNothingIsReservedInRedisOfARequestThatEnds(t *testing.T) {
	server := redistest.Start(t)
	redis, another := remote(t, server), remote(t, server)
	t.Cleanup(redis.Close)
	t.Cleanup(another.Close)
	for _, kind := range settling {
		s := settles(kind)[0]
		s.Name, s.SyncRate = "settles-"+kind.String(), config.Strict
		spent := one("denies-"+kind.String(), 9, config.Strict)
		spent.Enforce = config.Enforce(1)
		first, denies := newZone(t, s, redis), newZone(t, spent, redis)
		k, _ := denies.KeyOf(request("x"))
		spendElsewhere(t, denies, another, k.Raw, 9)
		e, err := Evaluate([]*Zone{denies, first}, request("x"), clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		if o, ok := e.Of(first); !e.Denied || !ok || o.Denied {
			t.Errorf("%s: denied %t, and the other zone: asked %t, denies %t; want a denial by the zone that is asked last", kind, e.Denied, ok, o.Denied)
		}
		e.Free()
		if n := first.AllLimits[0].Table.Reservations().Len(); n != 0 {
			t.Errorf("%s: %d keys have something reserved on this node, want none", kind, n)
		}
		remaining := func() int64 {
			e := decide(t, []*Zone{first}, "x")
			defer e.Free()
			n := e.Results()[0].Remaining
			e.Hold().Replay(Response{Status: http.StatusOK})
			return n
		}
		redistest.Eventually(t, kind.String()+" has got its unit back", func() bool { return remaining() == 4 })
	}
}
