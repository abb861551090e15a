package config

import (
	"net/http"
	"slices"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"
	maphandler "github.com/caddyserver/caddy/v2/modules/caddyhttp/map"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

// testLimiter is a handler with limits.
type testLimiter struct{ advised *Advised }

func (l testLimiter) Advised() *Advised { return l.advised }

func (testLimiter) ServeHTTP(http.ResponseWriter, *http.Request, caddyhttp.Handler) error { return nil }

// handlers are those of one route.
type handlers = []caddyhttp.MiddlewareHandler

func routesOf(hs ...caddyhttp.MiddlewareHandler) caddyhttp.RouteList {
	return caddyhttp.RouteList{{Handlers: hs}}
}

func subrouteOf(hs ...caddyhttp.MiddlewareHandler) caddyhttp.MiddlewareHandler {
	return &caddyhttp.Subroute{Routes: routesOf(hs...)}
}

// limiterOf returns a handler with a zone, which adds the codes of its warnings to a list.
func limiterOf(codes *[]string, z AdvisedZone, unset ...warning.Warning) testLimiter {
	return testLimiter{&Advised{Zones: []AdvisedZone{z}, Unset: unset, Warn: func(code, _ string) { *codes = append(*codes, code) }}}
}

// An advisedServer has limits, and is warned of once or not.
type advisedServer struct {
	server *caddyhttp.Server
	want   string
}

// advisedServers are servers whose warnings go to a list of codes.
func advisedServers(codes *[]string) map[string]advisedServer {
	byUser := limiterOf(codes, AdvisedZone{Settings: &Settings{Key: "{http.auth.user.id}"}, User: "http.auth.user.id"})
	byAddress := limiterOf(codes, AdvisedZone{Settings: &Settings{Key: "{http.vars.client_ip}"}})
	byHeader := limiterOf(codes, AdvisedZone{Settings: &Settings{Key: "{http.request.header.X-Api-Key}"}})
	byMap := limiterOf(codes, AdvisedZone{Settings: new(Settings)}, warning.Warning{Code: warning.UnknownKey, Unset: "a.b.c"})
	ofLogins := limiterOf(codes, AdvisedZone{Settings: &Settings{CountResponses: &caddyhttp.ResponseMatcher{StatusCode: []int{401}}}})
	basic, sets := new(caddyauth.Authentication), &maphandler.Handler{Destinations: []string{"a.b.c"}}
	on := func(m any, hs ...caddyhttp.MiddlewareHandler) caddyhttp.RouteList {
		return caddyhttp.RouteList{{Handlers: hs, MatcherSets: caddyhttp.MatcherSets{{m}}}}
	}
	failed := on(&caddyhttp.MatchExpression{Expr: "{http.error.status_code} in [401]"}, subrouteOf(byAddress))
	return map[string]advisedServer{
		"before authentication": {&caddyhttp.Server{Routes: routesOf(byUser, basic)}, warning.BeforeAuth},
		"after":                 {&caddyhttp.Server{Routes: routesOf(basic, byUser)}, ""},
		"without any":           {&caddyhttp.Server{Routes: routesOf(byUser)}, ""},
		"another zone before":   {&caddyhttp.Server{Routes: routesOf(byAddress, basic)}, ""},
		"on both sides":         {&caddyhttp.Server{Routes: routesOf(byUser, basic, byAddress)}, warning.BeforeAuth},
		"routes of their own":   {&caddyhttp.Server{Routes: routesOf(subrouteOf(byUser), subrouteOf(basic))}, warning.BeforeAuth},
		"in a route, right":     {&caddyhttp.Server{Routes: routesOf(subrouteOf(basic, byUser))}, ""},
		"in a route, wrong":     {&caddyhttp.Server{Routes: routesOf(subrouteOf(byAddress, byUser, subrouteOf(basic)))}, warning.BeforeAuth},

		"a client's key":             {&caddyhttp.Server{Routes: routesOf(byHeader)}, warning.ClientsKey},
		"and an address":             {&caddyhttp.Server{Routes: routesOf(byHeader, subrouteOf(byAddress))}, ""},
		"and an address, in a route": {&caddyhttp.Server{Routes: append(routesOf(byHeader), routesOf(byAddress)...)}, warning.ClientsKey},
		"behind a check":             {&caddyhttp.Server{Routes: routesOf(&caddyhttp.StaticResponse{StatusCode: "403"}, byHeader)}, ""},
		"behind an answer":           {&caddyhttp.Server{Routes: routesOf(&caddyhttp.StaticResponse{StatusCode: "404"}, byHeader)}, warning.ClientsKey},
		"behind a proxy":             {&caddyhttp.Server{Routes: routesOf(new(reverseproxy.Handler), byHeader)}, ""},
		"before a proxy":             {&caddyhttp.Server{Routes: routesOf(byHeader, new(reverseproxy.Handler))}, warning.ClientsKey},
		"in a named route":           {&caddyhttp.Server{NamedRoutes: map[string]*caddyhttp.Route{"r": {Handlers: handlers{byHeader}}}}, warning.ClientsKey},

		"set by nothing":     {&caddyhttp.Server{Routes: routesOf(byMap)}, warning.UnknownKey},
		"set by a map":       {&caddyhttp.Server{Routes: append(routesOf(subrouteOf(sets)), routesOf(byMap)...)}, ""},
		"set on error route": {&caddyhttp.Server{Routes: routesOf(byMap), Errors: &caddyhttp.HTTPErrorConfig{Routes: routesOf(sets)}}, ""},

		"responses of a site":     {&caddyhttp.Server{Routes: on(caddyhttp.MatchHost{"a.example"}, ofLogins)}, warning.AllReserve},
		"responses of a path":     {&caddyhttp.Server{Routes: routesOf(&caddyhttp.Subroute{Routes: on(caddyhttp.MatchPath{"/login"}, ofLogins)})}, ""},
		"responses of some sites": {&caddyhttp.Server{Routes: on(caddyhttp.MatchMethod{"POST"}, ofLogins)}, ""},

		"errors of logins": {&caddyhttp.Server{Errors: &caddyhttp.HTTPErrorConfig{Routes: failed}}, warning.LimitOnErrors},
		"all errors":       {&caddyhttp.Server{Errors: &caddyhttp.HTTPErrorConfig{Routes: routesOf(byAddress)}}, ""},
		"no error":         {&caddyhttp.Server{Routes: on(caddyhttp.MatchExpression{Expr: "{http.error.status_code} == 401"}, byAddress)}, ""},
		"a site beside":    {&caddyhttp.Server{Routes: routesOf(byAddress), Errors: &caddyhttp.HTTPErrorConfig{Routes: on(caddyhttp.MatchExpression{Expr: "{http.error.status_code} == 401"})}}, ""},
	}
}

func TestAdvise(t *testing.T) {
	var codes []string
	for name, c := range advisedServers(&codes) {
		codes = nil
		Advise(&caddyhttp.App{Servers: map[string]*caddyhttp.Server{"s": c.server}}, nil)
		if c.want == "" && len(codes) > 0 || c.want != "" && !slices.Equal(codes, []string{c.want}) {
			t.Errorf("%s: warned of %v, want %q", name, codes, c.want)
		}
	}
}

// What a server has was advised on with it; the list is for handlers that are in no route.
func TestAdviseOnceOnly(t *testing.T) {
	var codes []string
	l := limiterOf(&codes, AdvisedZone{Settings: &Settings{Key: "{http.request.cookie.sid}"}})
	app := &caddyhttp.App{Servers: map[string]*caddyhttp.Server{"s": {Routes: routesOf(l)}}}
	if Advise(app, []*Advised{l.advised}); len(codes) != 1 {
		t.Errorf("warned of %v in a route, want one", codes)
	}
	if Advise(nil, []*Advised{l.advised}); len(codes) != 2 {
		t.Errorf("warned of %v with the same handler in none, want two", codes)
	}
}
