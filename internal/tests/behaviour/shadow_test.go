package behaviour_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// The page's Caddyfile: the candidate denies nobody, the backend hears of it, clients do not, and
// what they claim is replaced.
func TestShadowModeOfThePage(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Join(r.Header.Values("X-Rate-Limited"), ","))
	}))
	defer backend.Close()
	global, site := sitetest.SiteInPage(t, "docs/shadow.md", "example.com")
	s := sitetest.StartCaddy(t, global, strings.ReplaceAll(site, "localhost:9000", backend.Listener.Addr().String()))
	told := map[string]int{}
	if a, err := s.Get(t.Context(), "HTTP/1.1", sitetest.OnPath("/search"), sitetest.Header("X-Rate-Limited", "forged")); err != nil || a.Body != "" {
		t.Errorf("the backend is told %q, %v, want nothing", a.Body, err)
	}
	for range 3000 { // 600 and 300 a minute, however long they take
		a, err := s.Get(t.Context(), "HTTP/1.1", sitetest.Header("X-Rate-Limited", "forged"))
		if err != nil {
			t.Fatal(err)
		}
		if policy := a.Header.Get("RateLimit-Policy"); policy != `"api";q=600;w=60` {
			t.Fatalf("RateLimit-Policy %s, want that of api alone", policy)
		}
		if a.Status != http.StatusOK {
			if a.Status != http.StatusTooManyRequests || !strings.Contains(a.Body, `"violated-policies":["api"]`) {
				t.Errorf("denied with %d %s, want 429 by api", a.Status, a.Body)
			}
			break
		}
		told[a.Body]++
	}
	if told[""] < 290 || told["api_lower"] < 250 || told["forged"] > 0 || len(told) != 2 {
		t.Errorf("the backend was told %v, want nothing of about 300 requests at least, and api_lower of as many", told)
	}
	if would, denied := sitetest.DecidedAs(t, "api_lower", "would_deny"), sitetest.DecidedAs(t, "api", "denied"); would < told["api_lower"] || denied != 1 {
		t.Errorf("metrics: %d would be denied by api_lower, %d denied by api, want %d at least and 1", would, denied, told["api_lower"])
	}
	if n := loggedMessages(s, "rate limit exceeded, not enforced"); n != 1 {
		t.Errorf("%d lines of what is not enforced, want one for the one client", n)
	}
}

// The page's Caddyfile for a matcher tells the backend nothing of requests that are not limited,
// and not what their client claims.
func TestShadowModeBehindAMatcherOfThePage(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Join(r.Header.Values("X-Rate-Limited"), ","))
	}))
	defer backend.Close()
	_, site := sitetest.SiteInPage(t, "docs/shadow.md", "api.example.com")
	s := sitetest.StartCaddy(t, "", strings.ReplaceAll(site, "localhost:9000", backend.Listener.Addr().String()))
	told := map[string]int{}
	for range 1500 { // 300 a minute, however long they take
		a, err := s.Get(t.Context(), "HTTP/1.1", sitetest.OnPath("/api/x"), sitetest.Header("X-Rate-Limited", "forged"))
		if err != nil || a.Status != http.StatusOK {
			t.Fatalf("%d, %v, want 200", a.Status, err)
		}
		if told[a.Body]++; told["api_lower"] == 10 {
			break
		}
	}
	if told["api_lower"] != 10 || len(told) != 2 || told[""] < 290 {
		t.Errorf("the backend was told %v, want nothing of 300 requests, and then api_lower", told)
	}
	if a, err := s.Get(t.Context(), "HTTP/1.1", sitetest.OnPath("/other"), sitetest.Header("X-Rate-Limited", "forged")); err != nil || a.Body != "" {
		t.Errorf("of a request that is not limited the backend is told %q, %v, want nothing", a.Body, err)
	}
}

// What was spent in shadow mode is spent when a reload enforces the limit, and the other way round.
func TestReloadChangesForWhomALimitIsEnforced(t *testing.T) {
	r := redistest.Start(t)
	for _, rate := range []string{"local", "strict", "100ms"} {
		block := func(enforce string) string {
			return sitetest.ZoneBlock("reload-"+rate, "limit 5/30d\nsync_rate "+rate+"\nenforce "+enforce)
		}
		s := sitetest.NewSite(t, sitetest.AppWith(r), block("off"))
		s.Admits("1.2.3.4", 8, 8)
		s.Admits("1.2.3.5", 3, 3)
		if n := sitetest.DecidedAs(t, "reload-"+rate, "would_deny"); n != 3 {
			t.Errorf("%s: %d of 8 requests would be denied at 5 in the window, want 3", rate, n)
		}
		for _, c := range []struct {
			enforce              string
			spent, fresh, unused int
		}{{"100%", 0, 2, 0}, {"0.0001", 4, 4, 4}, {"100%", 0, 0, 0}} {
			next := sitetest.NewSite(t, sitetest.AppWith(r), block(c.enforce))
			s.End()
			s = next
			redistest.Eventually(t, "the sync goes on", func() bool { return !s.Lost("reload-" + rate) })
			s.Admits("1.2.3.4", 4, c.spent)
			s.Admits("1.2.3.5", 4, c.fresh)
		}
		s.End()
	}
}

// The placeholders are empty where no zone has looked at the request, so that a header made of one
// is.
func TestWouldDenyIsEmptyForOtherRequests(t *testing.T) {
	for _, c := range []struct{ options, want string }{
		{"enforce off", "<>"}, {"enforce off\nexcept path /other", "<>"}, {"enforce 100%", "<>"}, {"", "<{http.rate_limit.would_deny.name}>"},
	} {
		s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("elsewhere", "limit 0/30d\nmatch path /limited /other\n"+c.options))
		r := s.Request("1.2.3.4", sitetest.To("/"))
		got := ""
		s.Next = func(_ http.ResponseWriter, r *http.Request) error {
			repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
			got = repl.ReplaceKnown("<{http.rate_limit.would_deny.name}>", "")
			return nil
		}
		if s.Send(r); got != c.want {
			t.Errorf("%q: the placeholder of a request that no zone matches gives %s, want %s", c.options, got, c.want)
		}
	}
}
