package sitetest

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// Site is a provisioned handler with the configuration it belongs to.
type Site struct {
	T       testing.TB
	Handler *ratelimit.Handler
	App     *ratelimit.App
	Cancel  context.CancelFunc
	Next    caddyhttp.HandlerFunc
	Ended   bool

	lines atomic.Pointer[zapcore.Core]
}

// NewSite provisions a handler from its block in a Caddyfile, beside an app, and starts the app.
func NewSite(t testing.TB, app *ratelimit.App, block string) *Site {
	t.Helper()
	return NewSiteWith(t, new(caddy.Config), app, block)
}

func NewSiteWith(t testing.TB, cfg *caddy.Config, app *ratelimit.App, block string) *Site {
	t.Helper()
	s, err := TrySiteWith(t, cfg, app, block)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.End)
	return s
}

func TrySite(t testing.TB, app *ratelimit.App, block string) (*Site, error) {
	return TrySiteWith(t, new(caddy.Config), app, block)
}

func TrySiteWith(t testing.TB, cfg *caddy.Config, app *ratelimit.App, block string) (*Site, error) {
	t.Helper()
	h := new(ratelimit.Handler)
	if err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser("rate_limit {\n" + block + "\n}")); err != nil {
		return nil, err
	}
	return TryHandler(t, cfg, app, h)
}

// TryHandler provisions a handler as it is configured.
func TryHandler(t testing.TB, cfg *caddy.Config, app *ratelimit.App, h *ratelimit.Handler) (*Site, error) {
	t.Helper()
	s := &Site{T: t, Handler: h, Next: func(http.ResponseWriter, *http.Request) error { return nil }}
	cfg.Admin = &caddy.AdminConfig{Disabled: true}
	if cfg.Logging == nil {
		cfg.Logging = s.logging()
	}
	base, err := caddy.ProvisionContext(cfg)
	if err != nil {
		t.Fatal(err)
	}
	appJSON, err := json.Marshal(app)
	if err != nil {
		t.Fatal(err)
	}
	cfg.AppsRaw = caddy.ModuleMap{"rate_limit": appJSON}
	ctx, cancel := caddy.NewContext(base)
	s.Cancel = cancel
	handlerJSON, err := json.Marshal(s.Handler)
	if err != nil {
		t.Fatal(err)
	}
	v, err := ctx.LoadModuleByID("http.handlers.rate_limit", handlerJSON)
	if err != nil {
		cancel()
		return nil, err
	}
	s.Handler = v.(*ratelimit.Handler)
	a, err := ctx.App("rate_limit")
	if err != nil {
		t.Fatal(err)
	}
	s.App = a.(*ratelimit.App)
	if err := s.App.Start(); err != nil {
		t.Fatal(err)
	}
	return s, nil
}

// End stops the app and cleans up, as Caddy does with a configuration that is replaced.
func (s *Site) End() {
	if s.Ended {
		return
	}
	s.Ended = true
	_ = s.App.Stop()
	s.Cancel()
}

// Reply is what a client sees.
type Reply struct {
	Status int
	Header http.Header
	Body   string
	Err    error
}

// Request is one request from an address, as the server prepares it.
func (s *Site) Request(ip string, change ...func(*http.Request)) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	r.RemoteAddr = net.JoinHostPort(ip, "1234")
	for _, f := range change {
		f(r)
	}
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), &caddyhttp.Server{})
	if ip != "" {
		caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, ip)
	}
	return r
}

func (s *Site) Send(r *http.Request) Reply {
	w := httptest.NewRecorder()
	err := s.Handler.ServeHTTP(w, r, s.Next)
	return Reply{w.Code, w.Header(), w.Body.String(), err}
}

func (s *Site) Get(ip string, change ...func(*http.Request)) Reply {
	return s.Send(s.Request(ip, change...))
}

// Admits sends count requests and wants the first want of them admitted.
func (s *Site) Admits(ip string, count, want int, change ...func(*http.Request)) {
	s.T.Helper()
	got := 0
	for range count {
		if s.Get(ip, change...).Status == http.StatusOK {
			got++
		}
	}
	if got != want {
		s.T.Errorf("%d requests from %s: %d admitted, want %d", count, ip, got, want)
	}
}

// Apart returns n names, the first ones that name makes of numbers whose keys share no counter
// beyond max_keys: which ones do is another in each process. ask makes a request of a name.
func (s *Site) Apart(n int, name func(i int) string, ask func(name string) *http.Request) (names []string) {
	taken := map[uint64]bool{}
	for i := 0; len(names) < n; i++ {
		k, _ := s.Handler.Zones()[0].KeyOf(ask(name(i)))
		if shared := keys.KeyOf(k.Raw).A >> 48; !taken[shared] {
			taken[shared] = true
			names = append(names, name(i))
		}
	}
	return names
}

func Header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func To(p string) func(*http.Request) {
	return func(r *http.Request) { r.URL.Path, r.RequestURI = p, p }
}

func ZoneBlock(name, options string) string { return "zone " + name + " {\n" + options + "\n}\n" }
