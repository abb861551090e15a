package limits

import (
	"context"
	"errors"
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
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// leftIn returns what is left of the first limit of a zone for all clients.
func leftIn(z *Zone) int64 {
	r := request("x")
	raw, _, _ := z.AppendKey(nil, r, reqkey.Vars(r))
	return z.AllLimits[0].Take(keys.KeyOf(raw), raw, clock.Now(), 0, 0).Remaining
}

// one is a zone for all clients.
func one(name string, limit int64, rate config.SyncRate) config.Settings {
	return config.Settings{
		Name: name, Key: "all", SyncRate: rate, Limits: []config.Rate{{Limit: limit, Window: 30 * 24 * time.Hour}},
		SubWindows: 1, MaxKeys: 100, IPv4Prefix: 32, IPv6Prefix: 64,
	}
}

func newZone(t *testing.T, s config.Settings, redis *Redis) *Zone {
	t.Helper()
	z, err := NewZone(ZoneOptions{Settings: s, Redis: redis, Logger: zap.NewNop(), Once: new(warning.Once)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(z.Release)
	return z
}

// A client that goes away while Redis is asked for one zone is refunded what other zones gave,
// whether Redis or this node decided there.
func TestAClientThatGoesAwayIsRefundedEverywhere(t *testing.T) {
	server := redistest.Start(t)
	there := remote(t, server)
	proxy := faultproxy.Start(t, server.Addr)
	proxy.Set(faultproxy.Blackhole)
	silent := *server
	silent.Addr = proxy.Addr
	for _, rate := range []config.SyncRate{config.Strict, config.Local} {
		mute := remote(t, &silent)
		mute.Strict.SetTimeout(2 * time.Second) // who makes the call waits so long
		first, waits := newZone(t, one("first"+rate.String(), 1, rate), there), newZone(t, one("waits"+rate.String(), 10, config.Strict), mute)
		zones := []*Zone{first, waits}
		Arrange(zones)
		r := request("x")
		ctx, leave := context.WithCancel(r.Context())
		before := proxy.Requests()
		go func() { // leaves once Redis is asked for the second zone
			defer leave()
			for proxy.Requests() == before && t.Context().Err() == nil {
				<-time.After(time.Millisecond)
			}
		}()
		if e, err := Evaluate(zones, r.WithContext(ctx), clock.Now()); !errors.Is(err, errGone) {
			t.Fatalf("sync_rate %s: %v, %v, want that the client has gone", rate, e, err)
		}
		e, err := Evaluate(zones[:1], request("x"), clock.Now())
		if err != nil || e.Denied {
			t.Errorf("sync_rate %s: a request after one whose client has gone: %v, denied, want the one that the limit has", rate, err)
		}
		if err == nil {
			e.Free()
		}
	}
}

// What a bucket gave to a request that another zone denies leaves it before it drains, so that what
// was taken after it drains sooner: it is not refunded out of what is taken later.
func TestWhatIsRolledBackDrainsNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := arranged(t, config.Settings{
			Name: "z", Key: "all", Kind: algorithms.TokenBucket, Burst: 20, Limits: []config.Rate{{Limit: 1, Window: time.Second}},
			ResponseCost: config.ResponseCost{Terms: []config.ResponseTerm{{Header: "Cost"}}},
		})[0]
		r, l := request("x"), &z.AllLimits[0]
		raw, _, _ := z.AppendKey(nil, r, reqkey.Vars(r))
		ask := func() *table.Ask { return &table.Ask{Key: keys.KeyOf(raw), Raw: raw, Now: clock.Now(), N: 10} }
		take := func() (taken table.Taken) {
			t.Helper()
			if l.Decide(ask(), z.Reserving, &taken); !taken.Allowed {
				t.Fatal("10 of a bucket of 20 are denied")
			}
			return taken
		}
		denied, stays := take(), take()
		time.Sleep(100 * time.Millisecond)
		l.rollBack(ask(), &denied, clock.Now(), false, false, new(answer.Result))
		time.Sleep(10 * time.Second) // what stays has drained
		take()
		l.Table.Settle(keys.KeyOf(raw), l.Table.ReservationOf(l.Effective, keys.KeyOf(raw), stays), clock.Now(), 0)
		if left := leftIn(z); left != 10 {
			t.Errorf("%d are left of 20 after 10 were taken, want 10", left)
		}
	})
}

// Of a zone in shadow mode that would have denied a request its queues are left at once, and not
// once more when the client goes away in another queue.
func TestAQueueIsLeftOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zones := arranged(t, config.Settings{
			Name: "shadow", Key: "all", Kind: algorithms.LeakyBucket, Queue: 3, Enforce: config.Enforce(0),
			Limits: []config.Rate{{Limit: 10, Window: time.Second}, {Limit: 1, Window: time.Hour}},
		}, config.Settings{
			Name: "queue", Key: "all", Kind: algorithms.LeakyBucket, Queue: 9, Limits: []config.Rate{{Limit: 1, Window: time.Minute}},
		})
		r := request("x")
		raw, _, _ := zones[0].AppendKey(nil, r, reqkey.Vars(r))
		spend := func(l *Limit, n int64) { l.Take(keys.KeyOf(raw), raw, clock.Now(), n, 0) }
		spend(&zones[0].AllLimits[0], 3)
		spend(&zones[1].AllLimits[0], 1)
		e := &Evaluation{Now: clock.Now()} // all queues have room for it,
		meetAll(e, zones, r)
		if err := e.askLater(r); err != nil || peeks(e) != 2 {
			t.Fatalf("the queues are read: %v, %d to enter", err, peeks(e))
		}
		spend(&zones[0].AllLimits[1], 4) // and now one of them has none
		e.enterQueues()
		var shadow *check
		for i := range e.checks {
			if e.checks[i].decision.isDenial() {
				shadow = &e.checks[i]
			}
		}
		if e.Denied || shadow == nil || !shadow.shadow {
			t.Fatalf("denied %t, %v, want that it would be denied in shadow mode", e.Denied, shadow)
		}
		e.rollBack(endsDenied, false)
		ctx, leave := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer leave()
		if err := e.Enter(ctx); !errors.Is(err, errGone) {
			t.Fatalf("%v, want that the client has gone", err)
		}
		time.Sleep(90 * time.Millisecond)
		if left := leftIn(zones[0]); left != 2 {
			t.Errorf("%d places are left in the queue, want 2: two of three others are there", left)
		}
	})
}

// What an answer tells of a request that has waited in a queue holds for the end of the wait.
func TestResultsOfARequestThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := config.Settings{Name: "queue", Key: "all", Kind: algorithms.LeakyBucket, Queue: 9, Limits: []config.Rate{{Limit: 2, Window: time.Minute}}}
		window := config.Settings{Name: "window", Key: "all", Kind: algorithms.FixedWindow, Limits: []config.Rate{{Limit: 10, Window: time.Hour}}}
		zones := arranged(t, window, queue)
		end := clock.Now() - clock.Now()%int64(time.Hour) + int64(time.Hour)
		for i := range 2 {
			e, err := Evaluate(zones, request("x"), clock.Now())
			if err != nil || e.Enter(t.Context()) != nil {
				t.Fatalf("request %d: %v", i, err)
			}
			if i == 1 && e.taken[e.checks[1].first].Delay == 0 {
				t.Fatal("the second request did not wait")
			}
			for j, r := range e.Results() {
				if r.Policy.Zone == "window" && clock.Now()+int64(r.MoreAfter) != end {
					t.Errorf("request %d: result %d tells that the window ends in %s, want %s", i, j, r.MoreAfter, time.Duration(end-clock.Now()))
				}
			}
			if e.Now != clock.Now() {
				t.Errorf("request %d: the results hold for %s before", i, time.Duration(clock.Now()-e.Now))
			}
			e.Free()
		}
	})
}

// A request that is denied and counted is one attempt, by which nodes estimate their share, and one
// decision without a counter of its own in a full table.
func TestADeniedRequestIsOneAttempt(t *testing.T) {
	s := one("counted", 1, config.Local)
	s.CountDenied, s.MaxKeys = true, 1
	z := newZone(t, s, nil)
	l := &z.AllLimits[0]
	raw := []byte("other")
	l.Take(keys.KeyOf(raw), raw, clock.Now(), 1, 0) // the table is full
	for i := range int64(3) {
		e, err := Evaluate([]*Zone{z}, request("x"), clock.Now())
		if err != nil || e.Denied != (i > 0) {
			t.Fatalf("request %d: %v, denied %t", i, err, e.Denied)
		}
		e.Free()
		if decisions := l.Table.Overflowed(); decisions != i+1 {
			t.Errorf("%d decisions for a key without a counter, want %d", decisions, i+1)
		}
	}
}

// A limit or a zone that admits a request which another one denies, and keeps its unit, makes the
// client wait too where that was the last one: header and Retry-After say how long. The zone of the
// denial is one that denied.
func TestADenialTakesTheLastUnitElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		both := config.Settings{
			Name: "both", Key: "all", Kind: algorithms.FixedWindow, CountDenied: true,
			Limits: []config.Rate{{Limit: 1, Window: time.Second}, {Limit: 2, Window: 20 * time.Second}},
		}
		first, second := both, both
		first.Name, first.Limits, first.CountDenied = "first", both.Limits[:1], false
		second.Name, second.Limits = "second", both.Limits[1:]
		shadow := second
		shadow.Name, shadow.Enforce = "shadow", config.Enforce(0)
		queue := second
		queue.Name, queue.Kind, queue.Queue = "queue", algorithms.LeakyBucket, 1
		for want, all := range map[time.Duration][]config.Settings{
			20 * time.Second: {both}, 20*time.Second + 1: {first, second}, time.Second: {first, shadow}, 10 * time.Second: {first, queue},
		} {
			zones := arranged(t, all...)
			time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
			e := decide(t, zones, "x")
			e.Free()
			e = decide(t, zones, "x")
			if d := e.Denial; d.Wait != want.Truncate(time.Second) || d.Zone != all[0].Name {
				t.Errorf("%d zones, with %s: denied for %s by %q, want %s by %q", len(all), all[len(all)-1].Name, d.Wait, d.Zone, want, all[0].Name)
			}
			for _, r := range e.Results() {
				if !r.Shadow && r.Remaining == 0 && r.MoreAfter > e.Denial.Wait {
					t.Errorf("%s: a limit tells %s, Retry-After is %s", all[0].Name, r.MoreAfter, e.Denial.Wait)
				}
			}
			e.Free()
		}
	})
}

// A matcher that panics leaves nothing spent or reserved of the zones that were asked before.
func TestAPanicOfAMatcherIsRefunded(t *testing.T) {
	s := one("before", 3, config.Local)
	s.CountResponses = &caddyhttp.ResponseMatcher{StatusCode: []int{http.StatusUnauthorized}}
	before, panics := newZone(t, s, nil), newZone(t, one("panics", 3, config.Local), nil)
	panics.Matchers = caddyhttp.MatcherSets{{matcherFunc(func(*http.Request) (bool, error) { panic("a matcher") })}}
	func() {
		defer func() {
			if recover() != "a matcher" {
				t.Error("the panic does not go on")
			}
		}()
		_, _ = Evaluate([]*Zone{before, panics}, request("x"), clock.Now())
	}()
	if left, open := leftIn(before), before.AllLimits[0].Table.Reservations().Len(); left != 3 || open != 0 {
		t.Errorf("%d of 3 are left, and %d keys have something reserved", left, open)
	}
}
