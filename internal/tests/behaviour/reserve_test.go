package behaviour_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// class has a request be of a class, by a header.
func class(name string) func(*http.Request) { return sitetest.Header("X-Class", name) }

// reservedSite is a site with zones, each of which has these reserves for classes. Pairs of a class
// and its share in per cent.
func reservedSite(t *testing.T, app *ratelimit.App, block string, reserves ...any) *sitetest.Site {
	t.Helper()
	h := new(ratelimit.Handler)
	if err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser("rate_limit {\n" + block + "\n}")); err != nil {
		t.Fatal(err)
	}
	for _, z := range h.RateLimits {
		for i := 0; i < len(reserves); i += 2 {
			match, err := json.Marshal(map[string][]string{"X-Class": {reserves[i].(string)}})
			if err != nil {
				t.Fatal(err)
			}
			z.Reserve = append(z.Reserve, ratelimit.Reserve{Share: float64(reserves[i+1].(int)) / 100, MatcherSetsRaw: caddyhttp.RawMatcherSets{{"header": match}}})
		}
	}
	s, err := sitetest.TryHandler(t, new(caddy.Config), app, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.End)
	return s
}

// The limit that is reserved from is the one that is in force: that of the request, and the one
// that an operator has set.
func TestReserveOfLimitsThatDiffer(t *testing.T) {
	s := reservedSite(t, &ratelimit.App{}, sitetest.ZoneBlock("varies", "key all\nlimit {http.request.header.X-Plan}/3650d\nlimit_default 5/3650d"), "paying", 20)
	s.Admits("1.1.1.1", 9, 4)
	s.Admits("1.1.1.1", 9, 4, sitetest.Plan("10"))
	s.Admits("1.1.1.1", 9, 2, sitetest.Plan("10"), class("paying"))
	s.Admits("1.1.1.1", 9, 9, sitetest.Plan("unlimited"))
	s.Admits("1.1.1.1", 9, 0, sitetest.Plan("0"), class("paying"))
	s.End()

	s = reservedSite(t, &ratelimit.App{Namespace: "reserve overrides"}, sitetest.ZoneBlock("set", "key {http.request.header.K}\nlimit 5/3650d"), "paying", 20)
	key := sitetest.Header("K", "a")
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"set","key":"a","limit":"10"}`)
	s.Admits("1.1.1.1", 9, 8, key)
	s.Admits("1.1.1.1", 9, 2, key, class("paying"))
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"set","key":"a","limit":"unlimited"}`)
	s.Admits("1.1.1.1", 9, 9, key)
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"set","key":"a","limit":"deny"}`)
	if a := s.Get("1.1.1.1", key, class("paying")); a.Status != http.StatusForbidden {
		t.Errorf("a key of which all is denied is answered %d to who pays", a.Status)
	}
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"set","key":"a"}`)
	s.Admits("1.1.1.1", 9, 0, key, class("paying"))
	sitetest.Changed(t, http.MethodPost, "/rate_limit/reset", `{"zone":"set","key":"a"}`)
	s.Admits("1.1.1.1", 9, 4, key)
	s.Admits("1.1.1.1", 9, 1, key, class("paying"))
}

// Explain says what the request would see, and what a request would that has no class.
func TestExplainOfAReserve(t *testing.T) {
	s := reservedSite(t, &ratelimit.App{Namespace: "reserve explained"}, sitetest.ZoneBlock("told", "key all\nlimit 10/3650d"), "paying", 20)
	s.Admits("1.1.1.1", 9, 8)
	const want = `"limit":8,"window":"3650d","used":8,"remote":0,"remaining":0,"after":0,"decision":"denied"`
	if status, text := sitetest.Ask(http.MethodPost, "/rate_limit/explain", `{"zone":"told","key":"all"}`); status != http.StatusOK || !strings.Contains(text, want) {
		t.Errorf("explain = %d %s, want %s", status, text, want)
	}
}

// Beyond max_keys, reserves are kept as well.
func TestReserveBeyondMaxKeys(t *testing.T) {
	for _, algorithm := range []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra"} {
		s := reservedSite(t, &ratelimit.App{}, sitetest.ZoneBlock("full-"+algorithm, "key {http.request.header.K}\nlimit 10/3650d\nmax_keys 1\nalgorithm "+algorithm), "paying", 20)
		names := s.Apart(6, func(i int) string { return fmt.Sprint("key", i) }, func(name string) *http.Request { return s.Request("1.1.1.1", sitetest.Header("K", name)) })
		s.Admits("1.1.1.1", 1, 1, sitetest.Header("K", names[0]))
		for _, name := range names[1:] {
			key := sitetest.Header("K", name)
			s.Admits("1.1.1.1", 12, 8, key)
			s.Admits("1.1.1.1", 12, 2, key, class("paying"))
		}
	}
}

// The page's Caddyfile: who doesn't pay is denied first, and who pays finds the reserve.
//
// no clock: in place of the page's window it has one of ten years.
func TestThePageOfReserves(t *testing.T) {
	upstream, asked := sitetest.Backend(t, "backend")
	global, site := sitetest.SiteInPage(t, "docs/reserve.md", "example.com")
	s := sitetest.StartCaddy(t, global, strings.NewReplacer("localhost:9000", upstream, "100/s", "100/3650d").Replace(site))
	paying := sitetest.Header("X-Api-Key", "5ddc4eb2")
	s.Answers("HTTP/1.1", 90, http.StatusOK, 80)
	if a, err := s.Get(t.Context(), "HTTP/1.1"); err != nil || a.Header.Get("RateLimit-Policy") != `"backend";q=80;w=315360000` {
		t.Errorf("who doesn't pay is told %v, %v", a.Header, err)
	}
	if a, err := s.Get(t.Context(), "HTTP/1.1", paying); err != nil || a.Header.Get("RateLimit-Policy") != `"backend";q=100;w=315360000` {
		t.Errorf("who pays is told %v, %v", a.Header, err)
	}
	s.Answers("HTTP/1.1", 25, http.StatusOK, 19, paying)
	if asked.Load() != 100 {
		t.Errorf("the backend was asked %d times, want 100", asked.Load())
	}
}
