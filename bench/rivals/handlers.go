package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/httplimit"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"

	_ "github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/bench/harness"
)

// handlers stand before another one, by client IP. x/time/rate has none.
func handlers() []subject {
	return []subject{
		{"Tide, headers ietf", tideHandler("ietf")},
		{"Tide, headers github", tideHandler("github")},
		{"Tide, headers off", tideHandler("off")},
		{"go-limiter", overHTTP(func(limit int, window time.Duration) (middleware, error) {
			store, err := memorystore.New(&memorystore.Config{Tokens: uint64(limit), Interval: window})
			if err != nil {
				return nil, err
			}
			m, err := httplimit.NewMiddleware(store, httplimit.IPKeyFunc())
			if err != nil {
				return nil, err
			}
			return m.Handle, nil
		})},
		{"throttled", overHTTP(func(limit int, window time.Duration) (middleware, error) {
			l, err := newThrottled(limit, window)
			if err != nil {
				return nil, err
			}
			h := throttled.HTTPRateLimiterCtx{RateLimiter: l, VaryBy: &throttled.VaryBy{RemoteAddr: true}}
			return h.RateLimit, nil
		})},
		{"ulule/limiter", overHTTP(func(limit int, window time.Duration) (middleware, error) {
			return stdlib.NewMiddleware(newUlule(limit, window)).Handler, nil
		})},
		{"httprate", overHTTP(func(limit int, window time.Duration) (middleware, error) {
			return httprate.LimitBy(limit, window, func(r *http.Request) (string, error) {
				ip, _, err := net.SplitHostPort(r.RemoteAddr)
				return httprate.CanonicalizeIP(ip), err
			}), nil
		})},
	}
}

// tideHandler is the handler as a configuration of Caddy makes it. Caddy finds out the client's
// address for every request, with a limiter or without, so that is not in its time.
func tideHandler(headers string) func(int, time.Duration) (func() ask, func(), error) {
	return func(limit int, window time.Duration) (func() ask, func(), error) {
		h, end := harness.Load(fmt.Sprintf(`{"rate_limits":{"zone":{"key":"{http.vars.client_ip}","limits":[{"max_events":%d,"window":%q}]}},"headers":[%q]}`,
			limit, window, headers), "")
		return func() ask {
			c, admitted := harness.NewClient(false), false
			next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
				admitted = true
				return nil
			})
			return func(k *key) bool {
				admitted = false
				c.Send(k.boxed, h, next)
				return admitted
			}
		}, end, nil
	}
}

type middleware = func(http.Handler) http.Handler

// overHTTP sends requests through a middleware of net/http.
func overHTTP(open func(int, time.Duration) (middleware, error)) func(int, time.Duration) (func() ask, func(), error) {
	return func(limit int, window time.Duration) (func() ask, func(), error) {
		m, err := open(limit, window)
		return func() ask {
			admitted := false
			h := m(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { admitted = true }))
			r, w := httptest.NewRequest(http.MethodGet, "/", nil), newSink()
			return func(k *key) bool {
				admitted = false
				r.RemoteAddr = k.addr
				clear(w.h)
				h.ServeHTTP(w, r)
				return admitted
			}
		}, func() {}, err
	}
}

// sink takes answers.
type sink struct{ h http.Header }

func newSink() sink { return sink{http.Header{}} }

func (s sink) Header() http.Header         { return s.h }
func (s sink) Write(b []byte) (int, error) { return len(b), nil }
func (s sink) WriteHeader(int)             {}
