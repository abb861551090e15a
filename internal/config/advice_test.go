package config

import (
	"net/http"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// testLimiter is a handler with limits.
type testLimiter struct{ advised *Advised }

func (l testLimiter) Advised() *Advised { return l.advised }

func (testLimiter) ServeHTTP(http.ResponseWriter, *http.Request, caddyhttp.Handler) error { return nil }

// What a server has was advised on with it; the list is for handlers that are in no route.
func TestAdviseOnceOnly(t *testing.T) {
	var codes []string
	l := testLimiter{&Advised{
		Zones: []AdvisedZone{{Settings: &Settings{Key: "{http.request.cookie.sid}"}}},
		Warn:  func(code, _ string) { codes = append(codes, code) },
	}}
	routes := caddyhttp.RouteList{{Handlers: []caddyhttp.MiddlewareHandler{l}}}
	app := &caddyhttp.App{Servers: map[string]*caddyhttp.Server{"s": {Routes: routes}}}
	if Advise(app, []*Advised{l.advised}); len(codes) != 1 {
		t.Errorf("warned of %v in a route, want one", codes)
	}
	if Advise(nil, []*Advised{l.advised}); len(codes) != 2 {
		t.Errorf("warned of %v with the same handler in none, want two", codes)
	}
}
