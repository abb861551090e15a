package limits

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// forged is an address from which somebody else sends early data.
const forged = "198.51.100.7"

// An earlyCase is a zone with two requests a month for each client, and what is changed of it.
type earlyCase struct {
	set     func(*config.Settings)
	match   caddyhttp.MatcherSets
	except  caddyhttp.MatcherSets
	reserve caddyhttp.MatcherSets
	change  func(*http.Request)
}

// zone compiles the zone of a case, whose lines are seen.
func (c *earlyCase) zone(t *testing.T, name string, redis *Redis) (*Zone, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	s := one(name, 2, config.Local)
	s.Key, s.Enforce = reqkey.Default, config.Enforce(1)
	o := ZoneOptions{Matchers: c.match, Except: c.except, Namespace: t.Name(), Logger: zap.New(core), Once: new(warning.Once), Redis: redis}
	if c.reserve != nil {
		o.ClassMatchers, s.Reserve = []caddyhttp.MatcherSets{c.reserve}, []config.Reserve{100}
	}
	if c.set != nil {
		c.set(&s)
	}
	o.Settings = s
	z, err := NewZone(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(z.Release)
	return z, logs
}

// request is one of a case in early data from the forged address, or from its owner.
func (c *earlyCase) request(early bool) *http.Request {
	r := prepared(forged, early)
	r.Header = http.Header{"K": {"k"}, "N": {"1"}}
	if c.change != nil {
		c.change(r)
	}
	return r
}

// ask has zones decide on a request, whose response has then ended.
func ask(t *testing.T, zones []*Zone, r *http.Request) (denied bool, why answer.Reason) {
	t.Helper()
	e, err := Evaluate(zones, r, clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Free()
	if !e.Denied {
		if err := e.Enter(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return e.Denied, e.Denial.Reason
}

// isUntouched checks that a zone has counted, reserved, banned, blamed and logged nothing.
func isUntouched(t *testing.T, z *Zone, logs *observer.ObservedLogs) {
	t.Helper()
	now := clock.Now()
	for l := range z.Each {
		if n := l.Table.Keys(); n != 0 {
			t.Errorf("zone %s has counters of %d keys", z.Name, n)
		}
	}
	if z.Slots != nil && z.Slots.Table.InUse() != 0 {
		t.Errorf("zone %s has %d slots in use", z.Name, z.Slots.Table.InUse())
	}
	if b := z.Banning; b != nil && b.Set.Count(now)+b.Shadow.Count(now) != 0 {
		t.Errorf("zone %s has banned or noted somebody", z.Name)
	}
	if z.DeniedKeys != nil && len(z.DeniedKeys.Most(now)) != 0 {
		t.Errorf("zone %s blames %v", z.Name, z.DeniedKeys.Most(now))
	}
	if logs.Len() != 0 {
		t.Errorf("zone %s has written %v", z.Name, logs.All())
	}
}

// byHeader, byMethod and byPath are matchers.
func byHeader() caddyhttp.MatcherSets {
	return caddyhttp.MatcherSets{{&caddyhttp.MatchHeader{"K": {"k"}}}}
}

func byMethod(method string) caddyhttp.MatcherSets {
	return caddyhttp.MatcherSets{{&caddyhttp.MatchMethod{method}}}
}

func byPath(path string) caddyhttp.MatcherSets {
	return caddyhttp.MatcherSets{{&caddyhttp.MatchPath{path}}}
}

// byAddress is Caddy's matcher of the forged address.
func byAddress(t *testing.T) *caddyhttp.MatchClientIP {
	t.Helper()
	m := &caddyhttp.MatchClientIP{Ranges: []string{forged + "/24"}}
	if err := m.Provision(caddy.Context{}); err != nil {
		t.Fatal(err)
	}
	return m
}

// keyed is a zone with another key.
func keyed(key string) func(*config.Settings) { return func(s *config.Settings) { s.Key = key } }

// needsAddress are zones for whose counts an address may matter.
func needsAddress(t *testing.T) map[string]earlyCase {
	t.Helper()
	number := &config.Amount{From: "{http.request.header.N}"}
	status := &caddyhttp.ResponseMatcher{StatusCode: []int{http.StatusUnauthorized}}
	return map[string]earlyCase{
		"the default key": {}, "networks": {set: func(s *config.Settings) { s.IPv4Prefix = 24 }},
		"the peer's address": {set: keyed("{http.request.remote.host}")}, "a key of several": {set: keyed("{http.request.tls.proto}{client_ip}")},
		"a header": {set: keyed(keyOfRequests)}, "a variable": {set: keyed("{customer}")}, "the host": {set: keyed("{http.request.host}")},
		"the path":                    {set: keyed("{http.request.uri.path}")},
		"an address for an empty key": {set: keyed("{http.request.tls.client.subject}")},
		"a limit":                     {set: func(s *config.Settings) { s.Key, s.Limits[0].From = "all", "{http.request.header.N}" }},
		"a cost": {set: func(s *config.Settings) {
			s.Key, s.Cost.Terms, s.Cost.Default = "all", []config.CostTerm{{Units: number}}, 1
		}},
		"a cost by bytes":   {set: func(s *config.Settings) { s.Cost.Terms, s.Cost.Default = []config.CostTerm{{Bytes: true}}, 1 }},
		"a response's cost": {set: func(s *config.Settings) { s.ResponseCost.Terms = []config.ResponseTerm{{Header: "Cost"}} }},
		"count_responses":   {set: func(s *config.Settings) { s.CountResponses = status }},
		"count_denied":      {set: func(s *config.Settings) { s.CountDenied = true }},
		"a bucket":          {set: func(s *config.Settings) { s.Kind, s.Burst = algorithms.TokenBucket, 2 }},
		"a queue":           {set: func(s *config.Settings) { s.Kind, s.Queue = algorithms.LeakyBucket, 2 }},
		"slots":             {set: func(s *config.Settings) { s.Limits, s.Concurrent = nil, 1 }},
		"slots and limits":  {set: func(s *config.Settings) { s.Concurrent = 1 }},
		"bandwidth":         {set: func(s *config.Settings) { s.Limits, s.Bandwidth = nil, 1000 }},
		"a ban":             {set: func(s *config.Settings) { s.Limits[0].Limit, s.Ban = 0, config.Ban{For: month} }},
		"enforced for some": {set: func(s *config.Settings) { s.Enforce = config.Enforce(0.01) }},
		"more than is ever admitted": {set: func(s *config.Settings) {
			s.Limits[0].Limit, s.Cost.Terms = 2, []config.CostTerm{{Units: &config.Amount{Number: 9}}}
		}},
		"no key is denied":          {set: func(s *config.Settings) { s.Key, s.EmptyKey = keyOfRequests, config.EmptyDeny }, change: func(r *http.Request) { r.Header = nil }},
		"a reserve":                 {set: keyed("all"), reserve: byHeader()},
		"an exception":              {set: keyed("all"), except: byHeader()},
		"an exception of addresses": {except: caddyhttp.MatcherSets{{byAddress(t)}}},
		"a matcher":                 {set: keyed("all"), match: byHeader()},
		"a matcher of addresses":    {set: keyed("all"), match: caddyhttp.MatcherSets{{byAddress(t)}}},
		"a negation":                {set: keyed("all"), match: caddyhttp.MatcherSets{{&caddyhttp.MatchNot{MatcherSets: []caddyhttp.MatcherSet{{byAddress(t)}}}}}},
		"a path that it is for":     {match: byPath("/")},
		"a method in lower case": {match: byMethod("POST"), change: func(r *http.Request) {
			r.Method = "post"
			*r = *r.WithContext(context.WithValue(r.Context(), caddyhttp.OriginalRequestCtxKey, http.Request{Method: "post", URL: r.URL}))
		}},
		"a path that was rewritten":    {set: keyed("all"), match: byPath("/other"), change: func(r *http.Request) { r.URL.Path = "/new" }},
		"an exception that is another": {except: byPath("/other")},
		"an exception, rewritten":      {except: byPath("/new"), change: func(r *http.Request) { r.URL.Path = "/new" }},
		"one of its sets":              {match: append(byPath("/other"), caddyhttp.MatcherSet{byAddress(t)})},
	}
}

// Early data of which an address may decide how it counts comes again after the handshake. Nothing
// of it is counted, in no zone of the handler, wherever it stands. In shadow mode it passes, and
// counts where no address matters.
func TestEarlyDataThatNeedsAnAddress(t *testing.T) {
	all := earlyCase{set: func(s *config.Settings) { s.Key, s.Limits[0].Limit = "all", 100 }}
	for name, c := range needsAddress(t) {
		t.Run(name, func(t *testing.T) {
			for _, shadow := range []bool{false, true} {
				d := c
				d.set = func(s *config.Settings) {
					if c.set != nil {
						c.set(s)
					}
					if shadow {
						s.Enforce = config.Enforce(0)
					}
				}
				z, logs := d.zone(t, fmt.Sprint("early ", shadow), nil)
				beside, quiet := all.zone(t, fmt.Sprint("beside ", shadow), nil)
				for _, zones := range [][]*Zone{{z, beside}, {beside, z}} {
					for range 3 {
						if denied, why := ask(t, zones, d.request(true)); denied == shadow || denied && why != answer.TooEarly {
							t.Fatalf("shadow mode %t: early data is denied: %t, %s; want 425 but in shadow mode", shadow, denied, why)
						}
					}
				}
				if isUntouched(t, z, logs); !shadow {
					isUntouched(t, beside, quiet)
				} else if left := leftIn(beside); left != 100-6 {
					t.Errorf("beside a zone in shadow mode %d of 100 are left after 6 requests", left)
				}
			}
		})
	}
}

// What an operator has said of an address, and its ban, wait for the handshake as well.
func TestEarlyDataOfAKeyWithRules(t *testing.T) {
	for _, rule := range []string{control.Deny, control.Unlimited, "9", "ban"} {
		c := earlyCase{set: func(s *config.Settings) { s.Ban = config.Ban{For: month} }}
		z, _ := c.zone(t, "ruled-"+rule, nil)
		owner := c.request(false)
		raw, _, _ := z.AppendKey(nil, owner, reqkey.Vars(owner))
		id := keys.IDOf(raw)
		if rule == "ban" {
			z.Banning.Set.Begin(id, clock.Now(), month)
		} else {
			set := control.Change{Target: control.Target{Zone: z.Name, Key: &id}, Body: control.Body{Limit: rule}, For: time.Hour}
			if _, err := ControlOf(nil, z.Namespace).Change(t.Context(), set); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 {
			if denied, why := ask(t, []*Zone{z}, c.request(true)); !denied || why != answer.TooEarly {
				t.Errorf("%s: early data is denied: %t, %s, want 425", rule, denied, why)
			}
		}
		want := map[string]answer.Reason{control.Deny: answer.Barred, "ban": answer.Banned}[rule]
		if denied, why := ask(t, []*Zone{z}, owner); denied != (want != 0) || why != want {
			t.Errorf("%s: after the handshake it is denied: %t, %s, want %s", rule, denied, why, want)
		}
	}
}

// Redis is not asked for early data, whether it decides or has what others counted.
func TestEarlyDataAsksNoRedis(t *testing.T) {
	server := redistest.Start(t)
	proxy := faultproxy.Start(t, server.Addr)
	through := *server
	through.Addr = proxy.Addr
	redis := remote(t, &through)
	c := earlyCase{set: func(s *config.Settings) { s.SyncRate = config.Strict }}
	z, logs := c.zone(t, "early-strict", redis)
	for range 5 {
		if denied, why := ask(t, []*Zone{z}, c.request(true)); !denied || why != answer.TooEarly {
			t.Errorf("early data is denied: %t, %s, want 425", denied, why)
		}
	}
	if isUntouched(t, z, logs); proxy.Requests() != 0 {
		t.Errorf("Redis was asked %d times", proxy.Requests())
	}
	if denied, _ := ask(t, []*Zone{z}, c.request(false)); denied || proxy.Requests() == 0 {
		t.Errorf("after the handshake it is denied: %t, with %d calls", denied, proxy.Requests())
	}
}

// Where no address matters, early data counts as any other request, and is denied with 429.
func TestEarlyDataThatNeedsNoAddress(t *testing.T) {
	number := "{http.request.orig_uri.path.0}"
	for name, c := range map[string]earlyCase{
		"one count for all": {set: keyed("all")}, "the server's name": {set: keyed("{http.request.tls.server_name}")},
		"the path as it came": {set: keyed("{http.request.orig_uri.path}")}, "a method": {set: keyed("all"), match: byMethod("GET")},
		"a path": {set: keyed("all"), match: byPath("/"), except: byPath("/other")}, "a reserve": {set: keyed("all"), reserve: byMethod("GET")},
		"a limit by what came":    {set: func(s *config.Settings) { s.Key, s.Limits[0].From = "all", number }},
		"one count without a key": {set: func(s *config.Settings) { s.Key, s.EmptyKey = "{http.request.tls.client.subject}", config.EmptyShare }},
		"a cost by bytes": {set: func(s *config.Settings) {
			s.Key, s.Cost.Terms, s.Cost.Default = "all", []config.CostTerm{{Bytes: true}}, 1
		}, change: func(r *http.Request) { r.ContentLength = 1 }},
	} {
		z, _ := c.zone(t, "proven "+name, nil)
		r := func(early bool) *http.Request {
			r := c.request(early)
			r.TLS.ServerName = "example.com"
			return r
		}
		for i, early := range []bool{true, false, true, false} {
			want := i >= 2
			if denied, why := ask(t, []*Zone{z}, r(early)); denied != want || denied && why != answer.Denied {
				t.Errorf("%s: request %d of 2, early data %t: denied %t, %s; want denied %t", name, i+1, early, denied, why, want)
			}
		}
	}
}

// A zone that is for other methods and paths leaves early data alone, as do its exceptions,
// whatever its key and its other matchers ask for.
func TestEarlyDataThatAZoneIsNotFor(t *testing.T) {
	both := append(byPath("/other")[0], byAddress(t))
	for name, c := range map[string]earlyCase{
		"another path": {match: byPath("/other")}, "another method": {match: byMethod("POST")}, "an exception": {except: byPath("/")},
		"a path and an address": {match: caddyhttp.MatcherSets{both}}, "an address and a path": {match: caddyhttp.MatcherSets{{both[1], both[0]}}},
		"an exception beside another one": {except: append(byHeader(), byPath("/")[0])},
	} {
		z, logs := c.zone(t, "elsewhere "+name, nil)
		for range 3 {
			if denied, why := ask(t, []*Zone{z}, c.request(true)); denied {
				t.Errorf("%s: early data is denied: %s", name, why)
			}
		}
		isUntouched(t, z, logs)
	}
}

// A request that comes back through an error route was counted there before, in early data as well.
func TestEarlyDataInAnErrorRoute(t *testing.T) {
	c := earlyCase{}
	z, logs := c.zone(t, "early-route", nil)
	z.AfterErrors = true
	r := c.request(true)
	markCounted(r, []string{z.Name})
	r = r.WithContext(context.WithValue(r.Context(), caddyhttp.ErrorCtxKey, errors.New("failed")))
	if denied, why := ask(t, []*Zone{z}, r); denied {
		t.Errorf("early data that was counted before is denied: %s", why)
	}
	isUntouched(t, z, logs)
}
