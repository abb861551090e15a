// Package sitetest is what tests of the whole module use: sites with a handler in this process, and
// Caddy with a Caddyfile, on any protocol.
package sitetest

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
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

// Tests run in the root of the repository, wherever they stand: pages, examples and testdata have
// one name for all of them.
func init() {
	_, file, _, _ := runtime.Caller(0)
	if err := os.Chdir(filepath.Join(filepath.Dir(file), "../../..")); err != nil {
		panic(err)
	}
}

// AdaptedSite is a site with the first handler of a Caddyfile.
func AdaptedSite(t *testing.T, caddyfile string) *Site {
	t.Helper()
	config, err := Adapt(caddyfile)
	if err != nil {
		t.Fatal(err)
	}
	s, err := TryHandler(t, new(caddy.Config), &ratelimit.App{}, HandlersIn(t, config)[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.End)
	return s
}

// Decides is admits for requests that don't queue.
func (s *Site) Decides(ip string, count, want int, change ...func(*http.Request)) {
	s.T.Helper()
	got := 0
	for range count {
		r := s.Request(ip, change...)
		e, err := limits.Evaluate(s.Handler.Zones(), r, clock.Now())
		if err != nil {
			s.T.Fatal(err)
		}
		if !e.Denied {
			got++
		}
		e.Free()
	}
	if got != want {
		s.T.Errorf("%d requests from %s: %d admitted, want %d", count, ip, got, want)
	}
}

// ValueOf returns what a placeholder has in a request.
func ValueOf(r *http.Request, name string) string {
	value, _ := reqkey.ReplacerOf(r).GetString(name)
	return value
}

// Plan has a request bring a limit.
func Plan(value string) func(*http.Request) { return Header("X-Plan", value) }

// A Sink is a response that nobody reads.
type Sink http.Header

// Header is that of the response.
func (d Sink) Header() http.Header { return http.Header(d) }

func (d Sink) Write(b []byte) (int, error) { return len(b), nil }

func (d Sink) WriteHeader(int) {}

// Home is a machine of its own: a data directory, and a storage.
type Home struct {
	T       *testing.T
	Dir     string
	Persist string
}

func NewHome(t *testing.T, persist string) *Home {
	dir := t.TempDir()
	t.Setenv("XDG_DATA_HOME", filepath.Join(dir, "data"))
	t.Setenv("TIDE_TEST_STATE", dir)
	return &Home{t, dir, persist}
}

// Boot is a process that begins with a configuration.
func (h *Home) Boot(block string) *Site {
	h.T.Helper()
	return h.BootIn("", block)
}

func (h *Home) BootIn(namespace, block string) *Site {
	h.T.Helper()
	storage, err := json.Marshal(map[string]string{"module": "file_system", "root": filepath.Join(h.Dir, "storage")})
	if err != nil {
		h.T.Fatal(err)
	}
	return NewSiteWith(h.T, &caddy.Config{StorageRaw: storage}, &ratelimit.App{Persist: h.Persist, Namespace: namespace}, block)
}
