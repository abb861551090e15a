package behaviour_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// The endpoint has one path: others are not found, so a slip in a script doesn't look like an
// answer.
func TestAdminHasOnePath(t *testing.T) {
	sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("one-path", "limit 10/30d"))
	route := sitetest.Admin()
	if route.Pattern != "/rate_limit/" {
		t.Errorf("Pattern = %q, want /rate_limit/", route.Pattern)
	}
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{http.MethodGet, "/rate_limit/", 0},
		{http.MethodGet, "/rate_limit/?a=b", 0},
		{http.MethodGet, "/rate_limit/nonsense", http.StatusNotFound},
		{http.MethodPost, "/rate_limit/nonsense", http.StatusNotFound},
		{http.MethodGet, "/rate_limit//", http.StatusNotFound},
		{http.MethodPost, "/rate_limit/", http.StatusMethodNotAllowed},
	} {
		err := route.Handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(c.method, c.path, nil))
		var got caddy.APIError
		if errors.As(err, &got); got.HTTPStatus != c.want || (err == nil) != (c.want == 0) {
			t.Errorf("%s %s = %v with status %d, want %d", c.method, c.path, err, got.HTTPStatus, c.want)
		}
	}
}

// The status of a zone's sync is reported where there is one: on the admin endpoint and as a
// metric.
func TestSyncIsReported(t *testing.T) {
	r := redistest.Start(t)
	sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock("told", "sync_rate 1h\nlimit 10/30d 100/60d")+sitetest.ZoneBlock("told-local", "sync_rate local\nlimit 10/30d"))
	sitetest.Shows(t, "told", "has had its first cycle", func(z operate.LimitState) bool { return z.Sync != nil && z.Sync.Cycles == 1 })
	w := httptest.NewRecorder()
	if err := sitetest.Admin().Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/rate_limit/", nil)); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Zones []struct {
			Zone string
			Sync map[string]any
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Zones) != 3 {
		t.Fatalf("%d limits, want 3: %s", len(got.Zones), w.Body)
	}
	for _, z := range got.Zones {
		if (z.Sync != nil) != (z.Zone == "told") {
			t.Errorf("zone %s reports %v, want a status of the zone that is synced only", z.Zone, z.Sync)
			continue
		}
		if z.Sync == nil {
			continue
		}
		text, _ := z.Sync["synced"].(string)
		if _, err := time.Parse(time.RFC3339Nano, text); err != nil || z.Sync["cycles"] == nil {
			t.Errorf("zone %s reports %v, want turns, and synced as a time", z.Zone, z.Sync)
		}
	}

	synced := func() map[string]float64 {
		t.Helper()
		values := make(map[string]float64)
		sitetest.Scrape(t, func(name string, labels map[string]string, value float64) {
			if name == "caddy_rate_limit_last_sync_timestamp_seconds" {
				values[labels["zone"]] = value
			}
		})
		return values
	}
	redistest.Eventually(t, "both limits have had their first cycle", func() bool { return synced()["told"] != 0 })
	now := float64(timeOf(r).Unix())
	if got := synced()["told"]; got < now-24*3600 || got > now+24*3600 {
		t.Errorf("the metric reports that the zone was in step with redis at %f, it is %f there", got, now)
	}
	if at, ok := synced()["told-local"]; ok {
		t.Errorf("the metric says %v of a zone that is not synced", at)
	}
}

// The status and a scrape answer while a reload sends the last counts to a Redis that doesn't
// answer.
func TestStatusAndScrapeDoNotWaitForAReload(t *testing.T) {
	r := redistest.Start(t)
	proxy := faultproxy.Start(t, r.Addr)
	app := sitetest.AppWith(r)
	app.Redis.Address = []string{proxy.Addr}
	// On a machine that stands still for two seconds the reload may be over before.
	redistest.Eventually(t, "there is an answer while a reload is under way", func() bool {
		s := sitetest.NewSite(t, app, sitetest.ZoneBlock("waits", "sync_rate 1h\nearly_sync off\nlimit 10/30d"))
		sitetest.Shows(t, "waits", "has had its first cycle", func(z operate.LimitState) bool { return z.Sync != nil && z.Sync.Cycles == 1 })
		proxy.Set(faultproxy.Blackhole)
		s.Get("1.2.3.4")
		next := sitetest.NewSite(t, &ratelimit.App{Namespace: app.Namespace}, sitetest.ZoneBlock("waits", "limit 10/30d"))
		defer next.End()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.End()
		}()
		redistest.Eventually(t, "the last counts are sent", func() bool {
			return strings.Contains(sitetest.StackTraces(t), "sync.(*group).flush(") || isClosed(ended)
		})
		for range 10 {
			if err := sitetest.Admin().Handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/rate_limit/", nil)); err != nil {
				t.Fatal(err)
			}
			sitetest.Scrape(t, func(string, map[string]string, float64) {})
		}
		under := !isClosed(ended)
		proxy.Set(faultproxy.Reset)
		<-ended
		proxy.Set(faultproxy.None)
		return under
	})
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
