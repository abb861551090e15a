package behaviour_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// An exception leaves one zone out and no other, and says so in the metrics alone.
func TestExceptedRequestsAreNotCounted(t *testing.T) {
	s := sitetest.StartCaddy(t, "", `
@internal header X-Internal yes
rate_limit {
	zone except-some {
		match path /api/*
		match path /v2/*
		except @internal
		except {
			method POST
			path /api/free
		}
		except 198.51.100.0/24
		limit 2/30d
	}
	zone except-none {
		limit 100/30d
	}
}
respond ok`)
	internal, free := sitetest.Header("X-Internal", "yes"), sitetest.OnPath("/api/free")
	for _, change := range [][]func(*http.Request){{sitetest.OnPath("/api/x"), internal}, {sitetest.OnPath("/v2/x"), internal}, {free, sitetest.Method(http.MethodPost)}} {
		for range 3 {
			a, err := s.Get(t.Context(), "HTTP/1.1", change...)
			if err != nil || a.Status != http.StatusOK {
				t.Fatalf("an excepted request: %d, %v, want 200", a.Status, err)
			}
			if policy := a.Header.Get("RateLimit-Policy"); !strings.Contains(policy, "except-none") || strings.Contains(policy, "except-some") {
				t.Errorf("RateLimit-Policy of an excepted request: %s, want that of except-none alone", policy)
			}
		}
	}
	if skipped, counted := sitetest.DecidedAs(t, "except-some", "skipped"), sitetest.DecidedAs(t, "except-none", "admitted"); skipped != 9 || counted != 9 {
		t.Errorf("of 9 excepted requests %d are skipped, and %d counted by the other zone, want all", skipped, counted)
	}
	s.Answers("HTTP/1.1", 3, http.StatusOK, 2, free) // but for its method
	s.Answers("HTTP/1.1", 1, http.StatusTooManyRequests, 1, sitetest.OnPath("/v2/y"))
	s.Answers("HTTP/1.1", 3, http.StatusOK, 3, internal) // which the zone does not match
	if skipped := sitetest.DecidedAs(t, "except-some", "skipped"); skipped != 9 {
		t.Errorf("%d requests are skipped, want the 9 excepted ones: others do not match the zone", skipped)
	}
}

func TestExceptedAddresses(t *testing.T) {
	t.Setenv("OFFICE", "192.0.2.7")
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("except-addresses", "except private_ranges 203.0.113.0/24\nexcept 2001:db8::1 {env.OFFICE}\nlimit 1/30d"))
	for _, free := range []string{"10.1.2.3", "203.0.113.9", "2001:db8::1", "192.0.2.7"} {
		s.Admits(free, 3, 3)
	}
	for _, limited := range []string{"198.51.100.1", "2001:db8:1::2"} {
		s.Admits(limited, 3, 1)
	}
}

// A zone that is hidden limits and says nothing, beside one that tells.
func TestHeadersOfAZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sitetest.NewSite(t, &ratelimit.App{}, "headers ietf kong\n"+sitetest.ZoneBlock("quota", "limit 10/1h")+
			sitetest.ZoneBlock("hidden", "limit 3/1h\nheaders off")+sitetest.ZoneBlock("other", "limit 4/1m\nheaders github"))
		a := s.Get("1.2.3.4")
		for name, want := range map[string]string{
			"Ratelimit-Policy": `"quota";q=10;w=3600`, "X-Ratelimit-Remaining-Hour": "9", "Ratelimit-Remaining": "9",
			"X-Ratelimit-Limit": "4", "X-Ratelimit-Remaining-Minute": "",
		} {
			if got := a.Header.Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		s.Admits("1.2.3.4", 2, 2)
		a = s.Get("1.2.3.4")
		if a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" || a.Header.Get("Ratelimit-Policy") != `"quota";q=10;w=3600` {
			t.Errorf("denied by the hidden zone: %d %v, want 429 with Retry-After and the quota alone", a.Status, a.Header)
		}
		off := sitetest.NewSite(t, &ratelimit.App{}, "headers off\n"+sitetest.ZoneBlock("shown", "limit 10/1h\nheaders ietf")+sitetest.ZoneBlock("silent", "limit 10/1h"))
		if got := off.Get("1.2.3.4").Header.Get("Ratelimit-Policy"); got != `"shown";q=10;w=3600` {
			t.Errorf("headers off, and draft in one zone: %q, want that zone's policy", got)
		}
	})
}

// The example for preflights leaves them alone, and lets the page read its headers.
func TestPreflightsOfTheExample(t *testing.T) {
	_, site, _ := strings.Cut(sitetest.ReadPage(t, "examples/preflights/Caddyfile"), "http://localhost:8080 {\n")
	site = regexp.MustCompile(`\n\t*limit .*`).ReplaceAllString(strings.TrimSuffix(strings.TrimSpace(site), "}"), "\nlimit 100/30d")
	s := sitetest.StartCaddy(t, "", site)
	origin := sitetest.Header("Origin", "https://app.example.com")
	for range 101 {
		a, err := s.Get(t.Context(), "HTTP/2.0", sitetest.Method(http.MethodOptions), origin, sitetest.Header("Access-Control-Request-Method", "POST"))
		if err != nil || a.Status != http.StatusNoContent || a.Header.Get("RateLimit") != "" || a.Header.Get("Access-Control-Allow-Origin") == "" {
			t.Fatalf("a preflight: %d %v, %v, want 204 with CORS headers and no RateLimit", a.Status, a.Header, err)
		}
	}
	s.Answers("HTTP/2.0", 100, http.StatusOK, 100, origin)
	a, err := s.Get(t.Context(), "HTTP/2.0", origin)
	if err != nil || a.Status != http.StatusTooManyRequests || !strings.Contains(a.Header.Get("Access-Control-Expose-Headers"), "Retry-After") ||
		a.Header.Get("Retry-After") == "" || a.Header.Get("RateLimit") == "" {
		t.Errorf("request 101: %d %v, %v, want 429 that the page can read", a.Status, a.Header, err)
	}
	noPreflight := []func(*http.Request){sitetest.Method(http.MethodOptions), origin}
	s.Answers("HTTP/2.0", 1, http.StatusTooManyRequests, 1, noPreflight...)
}
