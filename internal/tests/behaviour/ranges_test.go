package behaviour_test

import (
	"net/http"
	"strings"
	"testing"

	ratelimit "github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// An override of a range is one of each address in it, except of those that have one of their own
// or are in a smaller range. Lists show the range, whatever log_key says.
func TestOverridesOfRanges(t *testing.T) {
	for name, app := range map[string]*ratelimit.App{"local": {Namespace: t.Name()}, "redis": sitetest.AppWith(redistest.Start(t))} {
		t.Run(name, func(t *testing.T) {
			s := sitetest.NewSite(t, app, sitetest.ZoneBlock("login", "limit 1/30d"))
			set := func(key, limit string) {
				t.Helper()
				sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"`+key+`","limit":"`+limit+`"}`)
			}
			s.Admits("203.0.113.1", 2, 1)
			set("203.0.113.77/24", control.Deny)
			set("203.0.113.64/26", "3")
			set("203.0.113.65", control.Unlimited)
			set("2001:db8::/32", control.Deny)
			for ip, want := range map[string]int{
				"203.0.113.2": 0, "203.0.113.64": 3, "203.0.113.127": 3, "203.0.113.65": 5, "203.0.113.128": 0, "203.0.114.1": 1, "::ffff:203.0.113.3": 0,
				"2001:db8:1::1": 0, "2001:db9::1": 1,
			} {
				s.Admits(ip, 5, want)
			}
			if _, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, `{"zone":"login","key":"203.0.113.2"}`); !strings.Contains(text, `"override":"deny"`) {
				t.Errorf("explain says %s", text)
			}
			if _, text := sitetest.Ask(http.MethodGet, sitetest.Overrides, ""); !strings.Contains(text, `"range":"203.0.113.0/24"`) {
				t.Errorf("the list is %s", text)
			}
			sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"login","key":"203.0.113.0/24"}`)
			sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"login","key":"203.0.113.65"}`)
			s.Admits("203.0.113.2", 2, 1)
			s.Admits("203.0.113.65", 5, 3)
			s.Admits("2001:db8:1::1", 1, 0)
		})
	}
}

// A range is one where keys are addresses, and no smaller than their networks.
func TestRangesThatAreRejected(t *testing.T) {
	sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("login", "limit 1/30d\nipv4_prefix 24"))
	for _, key := range []string{"203.0.113.0/25", "203.0.113.0/33", "2001:db8::/65", "203.0.113/24"} {
		if status, text := sitetest.Ask(http.MethodPost, sitetest.Overrides, `{"zone":"login","key":"`+key+`","limit":"deny"}`); status != http.StatusBadRequest || !strings.Contains(text, "is no address") {
			t.Errorf("%s is %d %s", key, status, text)
		}
	}
}
