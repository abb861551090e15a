package behaviour_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// What is temporary covers what lasts, window by window, until it ends or is removed: then what
// lasts holds again. Answers and lists say both.
func TestATemporaryOverrideCoversALastingOne(t *testing.T) {
	for name, app := range map[string]*ratelimit.App{"local": {Namespace: t.Name()}, "redis": sitetest.AppWith(redistest.Start(t))} {
		t.Run(name, func(t *testing.T) {
			s := sitetest.NewSite(t, app, sitetest.ZoneBlock("plan", "limit 2/30d 100/60d"))
			set := func(limit, length string) operate.Changed {
				t.Helper()
				return sitetest.Changed(t, http.MethodPost, sitetest.Overrides, fmt.Sprintf(`{"zone":"plan","key":"192.0.2.1","limit":%q,"for":%q}`, limit, length))
			}
			holds := func(want ...string) {
				t.Helper()
				var got []string
				for _, e := range sitetest.AnswerOf[[]control.EntryState](t, http.MethodGet, sitetest.Overrides, "") {
					got = append(got, fmt.Sprint(e.Limit, " ", e.Temporary, " ", e.Covered))
				}
				if slices.Sort(got); !slices.Equal(got, want) {
					t.Errorf("the list says %q, want %q", got, want)
				}
			}
			set("4/30d 6/60d", "forever")
			s.Admits("192.0.2.1", 7, 4)
			if done := set("7/30d", "1h"); len(done.Holds) != 2 || done.Holds[0].Limit != "7/30d" || done.Holds[1].Limit != "4/30d 6/60d" {
				t.Errorf("what is temporary is answered with %+v", done.Holds)
			}
			holds("4/30d 6/60d false true", "7/30d true false")
			s.Admits("192.0.2.1", 7, 2) // the other window's 6 still hold
			if done := set("5/30d 6/60d", "forever"); done.Limit != "5/30d 6/60d" || done.Temporary || len(done.Holds) != 2 || !done.Holds[0].Temporary {
				t.Errorf("what lasts beneath it is answered with %+v", done)
			}
			set("unlimited", "1h")
			s.Admits("192.0.2.1", 3, 3)
			set("deny", "1h")
			s.Admits("192.0.2.1", 1, 0)
			done := sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"plan","key":"192.0.2.1"}`)
			if len(done.Holds) != 1 || done.Holds[0].Limit != "5/30d 6/60d" || done.Holds[0].Covered {
				t.Errorf("removing what is temporary leaves %+v", done.Holds)
			}
			holds("5/30d 6/60d false false")
			s.Admits("192.0.2.1", 1, 0)
			if done = sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"plan","key":"192.0.2.1"}`); len(done.Holds) != 0 {
				t.Errorf("removing what lasts leaves %+v", done.Holds)
			}
			holds()
		})
	}
}

// What lasts is unlimited except for what is temporary, which takes the place of a lasting deny.
func TestWhatATemporaryRateCovers(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("plan", "limit 1/30d 1/60d"))
	for i, lasting := range []string{"unlimited", "deny"} {
		key := fmt.Sprintf("192.0.2.%d", i)
		set := func(limit, length string) {
			sitetest.Changed(t, http.MethodPost, sitetest.Overrides, fmt.Sprintf(`{"zone":"plan","key":%q,"limit":%q,"for":%q}`, key, limit, length))
		}
		set(lasting, "forever")
		set("3/30d", "1h")
		want := 3 // the other window is unlimited
		if lasting == "deny" {
			want = 1
		}
		s.Admits(key, 5, want)
	}
	if _, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, `{"zone":"plan","key":"192.0.2.0"}`); !strings.Contains(text, `"override":"3/30d unlimited"`) {
		t.Errorf("explain says %s", text)
	}
}

// A file sets what lasts unless it says otherwise, so that it leaves what is temporary; removing
// its keys removes both.
func TestAFileOfOverridesLasts(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("plan", "limit 1/30d"))
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"plan","key":"192.0.2.1","limit":"3"}`)
	list := `{"zone":"plan","overrides":[{"key":"192.0.2.1","limit":"2"},{"key":"192.0.2.2","limit":"2"}]}`
	sitetest.AnswerOf[operate.BulkDone](t, http.MethodPost, operate.BulkPath, list)
	s.Admits("192.0.2.1", 4, 3)
	s.Admits("192.0.2.2", 4, 2)
	all := sitetest.AnswerOf[[]control.EntryState](t, http.MethodGet, sitetest.Overrides, "")
	if len(all) != 3 || slices.ContainsFunc(all, func(e control.EntryState) bool {
		return e.Temporary == (e.Until.Sub(e.Since) > control.Forever-time.Hour)
	}) {
		t.Errorf("the list is %+v", all)
	}
	if done := sitetest.AnswerOf[operate.BulkDone](t, http.MethodDelete, operate.BulkPath, list); done.Removed != 2 {
		t.Errorf("removing them says %+v", done)
	}
	if ids := overrideIDs(t); len(ids) != 0 {
		t.Errorf("%d overrides are left", len(ids))
	}
}

// An emergency ends with what is set to last, and leaves what lasted before it where it ends by
// itself.
func TestATemporaryEnforcement(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("api", "limit 1/30d\nenforce off"))
	enforce := func(share, length string) operate.Changed {
		return sitetest.Changed(t, http.MethodPost, sitetest.Enforcement, `{"zone":"api","share":`+share+`,"for":"`+length+`"}`)
	}
	enforce("1", "forever")
	s.Admits("192.0.2.1", 2, 1)
	enforce("0", "1h")
	s.Admits("192.0.2.1", 2, 2)
	if done := sitetest.Changed(t, http.MethodDelete, sitetest.Enforcement, `{"zone":"api"}`); len(done.Holds) != 1 || *done.Holds[0].Share != 1 {
		t.Errorf("removing it leaves %+v", done.Holds)
	}
	s.Admits("192.0.2.1", 2, 0)
	enforce("0", "1h")
	if done := enforce("1", "forever"); len(done.Holds) != 1 {
		t.Errorf("what is set to last leaves %+v", done.Holds)
	}
	s.Admits("192.0.2.1", 2, 0)
}
