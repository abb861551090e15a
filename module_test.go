package ratelimit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-tide/ratelimit/internal/config"
)

// site is a provisioned handler with the configuration it belongs to.
type site struct {
	t       testing.TB
	handler *Handler
	app     *App
	cancel  context.CancelFunc
	next    caddyhttp.HandlerFunc
	ended   bool
}

// newSite provisions a handler from its block in a Caddyfile, beside an app, and starts the app.
func newSite(t testing.TB, app *App, block string) *site {
	t.Helper()
	return newSiteWith(t, new(caddy.Config), app, block)
}

func newSiteWith(t testing.TB, cfg *caddy.Config, app *App, block string) *site {
	t.Helper()
	s, err := trySiteWith(t, cfg, app, block)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	return s
}

func trySite(t testing.TB, app *App, block string) (*site, error) {
	return trySiteWith(t, new(caddy.Config), app, block)
}

func trySiteWith(t testing.TB, cfg *caddy.Config, app *App, block string) (*site, error) {
	t.Helper()
	h := new(Handler)
	if err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser("rate_limit {\n" + block + "\n}")); err != nil {
		return nil, err
	}
	return tryHandler(t, cfg, app, h)
}

// tryHandler provisions a handler as it is configured.
func tryHandler(t testing.TB, cfg *caddy.Config, app *App, h *Handler) (*site, error) {
	t.Helper()
	s := &site{t: t, handler: h, next: func(http.ResponseWriter, *http.Request) error { return nil }}
	cfg.Admin = &caddy.AdminConfig{Disabled: true}
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
	s.cancel = cancel
	handlerJSON, err := json.Marshal(s.handler)
	if err != nil {
		t.Fatal(err)
	}
	v, err := ctx.LoadModuleByID("http.handlers.rate_limit", handlerJSON)
	if err != nil {
		cancel()
		return nil, err
	}
	s.handler = v.(*Handler)
	a, err := ctx.App("rate_limit")
	if err != nil {
		t.Fatal(err)
	}
	s.app = a.(*App)
	if err := s.app.Start(); err != nil {
		t.Fatal(err)
	}
	return s, nil
}

// end stops the app and cleans up, as Caddy does with a configuration that is replaced.
func (s *site) end() {
	if s.ended {
		return
	}
	s.ended = true
	_ = s.app.Stop()
	s.cancel()
}

// reply is what a client sees.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

// request is one request from an address, as the server prepares it.
func (s *site) request(ip string, change ...func(*http.Request)) *http.Request {
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

func (s *site) send(r *http.Request) reply {
	w := httptest.NewRecorder()
	err := s.handler.ServeHTTP(w, r, s.next)
	return reply{w.Code, w.Header(), w.Body.String(), err}
}

func (s *site) get(ip string, change ...func(*http.Request)) reply {
	return s.send(s.request(ip, change...))
}

// admits sends count requests and wants the first want of them admitted.
func (s *site) admits(ip string, count, want int, change ...func(*http.Request)) {
	s.t.Helper()
	got := 0
	for range count {
		if s.get(ip, change...).status == http.StatusOK {
			got++
		}
	}
	if got != want {
		s.t.Errorf("%d requests from %s: %d admitted, want %d", count, ip, got, want)
	}
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func to(p string) func(*http.Request) {
	return func(r *http.Request) { r.URL.Path, r.RequestURI = p, p }
}

func zoneBlock(name, options string) string { return "zone " + name + " {\n" + options + "\n}\n" }

func TestWhatADenialSendsTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, &App{}, zoneBlock(t.Name(), "limit 2/1m\nalgorithm sliding_log"))
		s.admits("1.2.3.4", 2, 2)
		time.Sleep(10*time.Second + time.Millisecond)
		a := s.get("1.2.3.4")
		if a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "50" || a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("third request: %d %v, want 429 with Retry-After 50 and no-store", a.status, a.header)
		}
		if got := a.header.Get("Content-Type"); got != "application/problem+json" || !strings.Contains(a.body, t.Name()) {
			t.Errorf("body of type %s: %s, want problem details that name the policy", got, a.body)
		}
		s.admits("1.2.3.5", 1, 1)
		time.Sleep(49 * time.Second)
		s.admits("1.2.3.4", 1, 0)
		time.Sleep(time.Second)
		s.admits("1.2.3.4", 3, 2)
		s.end()
	})
}

// Retry-After is held to both sides through the whole handler: a client that waits that long is
// admitted, a second earlier it is not.
func TestRetryAfterFromBothSides(t *testing.T) {
	for _, options := range []string{
		"limit 7/1m", "limit 3/17s\nalgorithm sliding_window\nbuckets 5", "limit 7/1m\nalgorithm fixed_window", "limit 7/59s\nalgorithm sliding_log",
		"limit 7/1m\nalgorithm token_bucket\nburst 3", "limit 7/61s\nalgorithm gcra", "limit 1/10s\nalgorithm leaky_bucket\nqueue 0",
	} {
		for _, early := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, &App{}, zoneBlock("z", options))
				defer s.end()
				time.Sleep(1234 * time.Millisecond)
				var a reply
				for range 20 {
					if a = s.get("1.2.3.4"); a.status != http.StatusOK {
						break
					}
					time.Sleep(77 * time.Millisecond)
				}
				seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
				if err != nil || a.status != http.StatusTooManyRequests {
					t.Fatalf("%s: %d %v, want a denial", options, a.status, a.header)
				}
				wait, want := time.Duration(seconds)*time.Second, http.StatusOK
				if early {
					wait, want = wait-time.Second, http.StatusTooManyRequests
				}
				time.Sleep(wait)
				if got := s.get("1.2.3.4").status; got != want {
					t.Errorf("%s: after %v of Retry-After %d: %d, want %d", options, wait, seconds, got, want)
				}
			})
		}
	}
}

func TestADeniedRequestConsumesNothingInOtherZones(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"} {
		t.Run(algorithm, func(t *testing.T) {
			s := newSite(t, &App{}, zoneBlock("wide"+algorithm, "limit 10/1h 100/1d\nalgorithm "+algorithm)+
				zoneBlock("narrow"+algorithm, "key {http.request.header.K}\nlimit 1/30m\nalgorithm "+algorithm))
			s.admits("1.2.3.4", 50, 1, header("K", "a"))
			for i := range 9 {
				s.admits("1.2.3.4", 1, 1, header("K", fmt.Sprint(i)))
			}
			s.admits("1.2.3.4", 1, 0, header("K", "last"))
			a := s.get("1.2.3.4", header("K", "a"))
			longest := 0 // of the waits of the limits that deny
			for _, m := range regexp.MustCompile(`r=0;t=(\d+)`).FindAllStringSubmatch(a.header.Get("Ratelimit"), -1) {
				t, _ := strconv.Atoi(m[1])
				longest = max(longest, t)
			}
			if seconds, _ := strconv.Atoi(a.header.Get("Retry-After")); seconds < longest || longest == 0 {
				t.Errorf("both zones deny: Retry-After %d, want the longer wait %d", seconds, longest)
			}
		})
	}
}

func TestConcurrentRequestsAdmitExactlyTheLimit(t *testing.T) {
	s := newSite(t, &App{}, zoneBlock("concurrent", "limit 100/1h")+zoneBlock("concurrent2", "limit 150/2h\nalgorithm sliding_log"))
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if s.get("1.2.3.4").status == http.StatusOK {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	// a request that is about to be denied by one zone may take a place in the other for an
	// instant
	if got := admitted.Load(); got > 100 || got < 95 {
		t.Errorf("800 concurrent requests: %d admitted, want 100", got)
	}
}

func TestDenyAll(t *testing.T) {
	s := newSite(t, &App{}, zoneBlock("deny", "limit 0/1m"))
	a := s.get("1.2.3.4")
	if a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "60" {
		t.Errorf("limit 0: %d, Retry-After %s, want 429 and the window", a.status, a.header.Get("Retry-After"))
	}
}

func TestClientIPGrouping(t *testing.T) {
	s := newSite(t, &App{}, zoneBlock("grouping", "limit 2/1h"))
	s.admits("2001:db8:1:2::1", 1, 1)
	s.admits("2001:db8:1:2:3::4", 2, 1) // the same /64
	s.admits("2001:db8:1:3::1", 1, 1)
	s.admits("9.9.9.9", 1, 1)
	s.admits("::ffff:9.9.9.9", 2, 1)
	s.admits("9.9.9.8", 1, 1)
	s.admits("", 3, 2) // early data without an address: limited all the same
}

func TestEmptyKey(t *testing.T) {
	// of 3 requests from one address, then of 3 from another
	for policy, want := range map[string][2]int{
		"client_ip": {2, 2}, "share": {2, 0}, "skip": {3, 3}, "deny": {0, 0},
	} {
		s := newSite(t, &App{}, zoneBlock("empty-"+policy, "key {http.request.header.X-Api-Key}\nlimit 2/1h\nempty_key "+policy))
		s.admits("1.2.3.4", 3, want[0])
		s.admits("1.2.3.5", 3, want[1])
		s.admits("1.2.3.4", 3, 2, header("X-Api-Key", "k"))
	}
}

func TestCountDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, &App{}, zoneBlock("count", "limit 5/1m\nalgorithm sliding_log\ncount_denied"))
		defer s.end()
		s.admits("1.2.3.4", 10, 5)
		time.Sleep(59 * time.Second)
		s.admits("1.2.3.4", 10, 0)
		time.Sleep(2 * time.Second)
		s.admits("1.2.3.4", 10, 0) // what was denied counts as well
		time.Sleep(61 * time.Second)
		s.admits("1.2.3.4", 10, 5)
	})
}

// A client that waits for Retry-After is admitted, also where the denial that it came with was
// charged.
func TestCountDeniedAdmitsWhoWaits(t *testing.T) {
	for _, options := range []string{"limit 2/4s\nalgorithm token_bucket", "limit 2/4s", "limit 2/4s\nalgorithm fixed_window", "limit 2/4s\nalgorithm sliding_log"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, &App{}, zoneBlock("waits", options+"\ncount_denied"))
			defer s.end()
			s.admits("1.2.3.4", 2, 2)
			for range 3 {
				s.admits("1.2.3.4", 1, 0)
			}
			seconds, _ := strconv.Atoi(s.get("1.2.3.4").header.Get("Retry-After"))
			time.Sleep(time.Duration(seconds) * time.Second)
			if got := s.get("1.2.3.4").status; got != http.StatusOK {
				t.Errorf("%s: after Retry-After %d: %d, want 200", options, seconds, got)
			}
		})
	}
}

// Where nobody sees how admitted requests leave the limits, that isn't worked out. A denial shows
// the same as everywhere, also of the limits that would have admitted.
func TestAHandlerWithoutHeadersDeniesInFull(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra", "leaky_bucket\nqueue 0"} {
		for _, denied := range []string{"", "\ncount_denied"} {
			var shown []string
			for _, options := range []string{"headers off\n", "headers off\ndisable_placeholders\n"} {
				synctest.Test(t, func(t *testing.T) {
					s := newSite(t, &App{}, options+zoneBlock("first", "limit 1/1h\nalgorithm "+algorithm+denied)+zoneBlock("second", "limit 0/1m"))
					defer s.end()
					time.Sleep(1234 * time.Millisecond)
					r := s.request("1.2.3.4")
					a := s.send(r)
					repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
					shown = append(shown, repl.ReplaceAll("{http.rate_limit.first.remaining} of {http.rate_limit.first.limit} {http.rate_limit.first.reset} "+
						"{http.rate_limit.second.reset} {http.rate_limit.exceeded.wait} ", "")+a.header.Get("Retry-After")+a.body)
				})
			}
			if shown[0] != shown[1] || denied != "" && strings.Contains(shown[0], "0 of 1 0 ") {
				t.Errorf("%s%s: a handler without placeholders denies with %s, another one with %s", algorithm, denied, shown[1], shown[0])
			}
		}
	}
}

func TestLeakyBucketDelaysAndForgetsWhoLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, &App{}, zoneBlock("leaky", "limit 1/10s\nalgorithm leaky_bucket\nqueue 2"))
		defer s.end()
		start := time.Now()
		var at [3]time.Duration
		var wg sync.WaitGroup
		for i := range at {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				s.admits("1.2.3.4", 1, 1)
				at[i] = time.Since(start).Round(time.Second)
			})
		}
		time.Sleep(10 * time.Millisecond)
		s.admits("1.2.3.4", 1, 0) // one in service, two wait
		wg.Wait()
		if want := [3]time.Duration{0, 10 * time.Second, 20 * time.Second}; at != want {
			t.Errorf("admitted after %v, want %v", at, want)
		}
		time.Sleep(time.Minute)

		s.admits("1.2.3.4", 1, 1)
		ctx, leave := context.WithCancel(context.Background())
		s.next = func(http.ResponseWriter, *http.Request) error { t.Error("a client that left was served"); return nil }
		wg.Go(func() {
			a := s.get("1.2.3.4", func(r *http.Request) { *r = *r.WithContext(ctx) })
			if a.err == nil {
				t.Error("a client that left: no error")
			}
		})
		synctest.Wait()
		leave()
		wg.Wait()
		s.next = func(http.ResponseWriter, *http.Request) error { return nil }
		before := time.Now()
		s.admits("1.2.3.4", 1, 1)
		if waited := time.Since(before).Round(time.Second); waited != 10*time.Second {
			t.Errorf("after the last in line left, the next waited %v, want its place, 10s", waited)
		}
	})
}

func TestARequestThatComesBackThroughAnErrorRouteIsCountedOnce(t *testing.T) {
	s := newSite(t, &App{}, zoneBlock("errors", "limit 2/1h"))
	failure := caddyhttp.Error(http.StatusBadGateway, errors.New("upstream"))
	for range 2 {
		r := s.request("1.2.3.4")
		s.next = func(http.ResponseWriter, *http.Request) error { return failure }
		if a := s.send(r); a.err == nil {
			t.Fatal("the next handler's error is lost")
		}
		s.next = func(http.ResponseWriter, *http.Request) error { return nil }
		r = r.WithContext(context.WithValue(r.Context(), caddyhttp.ErrorCtxKey, failure))
		if a := s.send(r); a.status != http.StatusOK {
			t.Errorf("on the error route: %d, want it counted once", a.status)
		}
	}
	s.admits("1.2.3.4", 1, 0)
}

func TestTwoHandlersOnOneWayAreEachCountedOnce(t *testing.T) {
	outer := newSite(t, &App{}, zoneBlock("outer", "limit 2/1h"))
	inner := newSite(t, &App{}, zoneBlock("inner", "limit 2/1h"))
	failure := caddyhttp.Error(http.StatusBadGateway, errors.New("upstream"))
	outer.next = func(w http.ResponseWriter, r *http.Request) error { return inner.handler.ServeHTTP(w, r, inner.next) }
	for range 2 {
		r := outer.request("1.2.3.4")
		inner.next = func(http.ResponseWriter, *http.Request) error { return failure }
		outer.send(r)
		inner.next = func(http.ResponseWriter, *http.Request) error { return nil }
		if a := outer.send(r.WithContext(context.WithValue(r.Context(), caddyhttp.ErrorCtxKey, failure))); a.status != http.StatusOK {
			t.Errorf("on the error route: %d, want it counted once in both", a.status)
		}
	}
}

func TestMatchersSelect(t *testing.T) {
	s := newSite(t, &App{}, zoneBlock("match", "match {\npath /login\n}\nlimit 1/1h"))
	s.admits("1.2.3.4", 3, 3, to("/other"))
	s.admits("1.2.3.4", 3, 1, to("/login"))
}

func TestChangedLimitAppliesToWhatIsSpent(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"} {
		block := func(n int) string {
			return zoneBlock("changed-"+algorithm, fmt.Sprintf("limit %d/1h\nalgorithm %s", n, algorithm))
		}
		s := newSite(t, &App{}, block(10))
		s.admits("1.2.3.4", 12, 10)
		s2 := newSite(t, &App{}, block(15))
		s.end()
		s2.admits("1.2.3.4", 12, 5)
	}
}

func TestChangedNumbersOfAnUnnamedLimitKeepItsCounts(t *testing.T) {
	block := func(n int) string {
		name := config.NameOf("a.example", []config.Rate{{Limit: int64(n), Window: time.Hour}})
		return zoneBlock(strconv.Quote(name), fmt.Sprintf("limit %d/1h", n))
	}
	s := newSite(t, &App{}, block(10)+block(1000))
	s.admits("1.2.3.4", 12, 10)
	s.admits("1.2.3.5", 12, 10)
	s2 := newSite(t, &App{}, block(15)+block(1000))
	s2.admits("1.2.3.4", 1, 1) // the new server may serve before the old app has stopped
	s.end()
	s2.admits("1.2.3.4", 12, 4)
	s3 := newSite(t, &App{}, block(20)+block(1000))
	s2.end()
	s3.admits("1.2.3.5", 12, 10) // it was quiet all the while
	s4 := newSite(t, &App{Namespace: "another"}, block(20)+block(1000))
	s3.end()
	s4.admits("1.2.3.4", 12, 5)
}

func TestAFailedReloadChangesNothing(t *testing.T) {
	s := newSite(t, &App{}, zoneBlock("failed", "limit 10/1h"))
	s.admits("1.2.3.4", 4, 4)
	if _, err := trySite(t, &App{}, zoneBlock("failed", "limit 3/1h")+zoneBlock("bad", "key {http.request.nonsense}\nlimit 1/1h")); err == nil {
		t.Fatal("a bad configuration was accepted")
	}
	s.admits("1.2.3.4", 10, 6)
	// A configuration whose other apps fail to start is stopped again.
	s2 := newSite(t, &App{}, zoneBlock("failed", "limit 3/1h"))
	s2.end()
	s.admits("1.2.3.5", 12, 10)
	s.admits("1.2.3.4", 1, 0)
}

func TestCountersEndWithTheLastConfiguration(t *testing.T) {
	s := newSite(t, &App{}, zoneBlock("end", "limit 1/1h"))
	s.admits("1.2.3.4", 2, 1)
	s.end()
	s = newSite(t, &App{}, zoneBlock("end", "limit 1/1h"))
	s.admits("1.2.3.4", 2, 1)
}

func TestHostileKeys(t *testing.T) {
	s := newSite(t, &App{}, zoneBlock("hostile", "key {http.request.header.K}\nlimit 1/1h"))
	for _, key := range []string{strings.Repeat("x", 20_000), "\x00\xff\xfe", "{}", "{http.request.host}", "a\r\nSet-Cookie: b"} {
		s.admits("1.2.3.4", 3, 1, header("K", key))
	}
}

func TestPlaceholdersOfAServedRequest(t *testing.T) {
	for _, headers := range []string{"draft", "off"} {
		zone := "shown_" + headers
		s := newSite(t, &App{}, "headers "+headers+"\n"+zoneBlock(zone, "limit 3/1h\nalgorithm fixed_window"))
		r := s.request("1.2.3.4")
		repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
		s.send(r)
		if got := repl.ReplaceAll("{http.rate_limit."+zone+".limit} {http.rate_limit."+zone+".remaining}", "-"); got != "3 2" {
			t.Errorf("%s: limit and remaining = %q, want 3 2", headers, got)
		}
		s.admits("1.2.3.4", 2, 2)
		r = s.request("1.2.3.4")
		repl = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
		s.send(r)
		if got := repl.ReplaceAll("{http.rate_limit.exceeded.name}", "-"); got != zone {
			t.Errorf("exceeded.name = %q, want %s", got, zone)
		}
	}
}
