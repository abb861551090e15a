package ratelimit

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// What is told of a zone's exchange is told where there is one: on the admin endpoint and as a metric.
func TestExchangeIsTold(t *testing.T) {
	r := redistest.Start(t)
	newSite(t, appWith(r), zoneBlock("told", "sync_rate 1h\nlimit 10/1h 100/1d")+zoneBlock("told-local", "sync_rate local\nlimit 10/1h"))
	shows(t, "told", "has had its first turn", func(z limitStatus) bool { return z.Exchange != nil && z.Exchange.Turns == 1 })
	w := httptest.NewRecorder()
	if err := new(adminAPI).serve(w, httptest.NewRequest(http.MethodGet, "/rate_limit/", nil)); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Zones []struct {
			Zone     string
			Exchange map[string]any
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Zones) != 3 {
		t.Fatalf("%d limits, want 3: %s", len(got.Zones), w.Body)
	}
	for _, z := range got.Zones {
		if (z.Exchange != nil) != (z.Zone == "told") {
			t.Errorf("of zone %s is told %v, want something of the zone that is exchanged only", z.Zone, z.Exchange)
			continue
		}
		if z.Exchange == nil {
			continue
		}
		text, _ := z.Exchange["synced"].(string)
		if _, err := time.Parse(time.RFC3339Nano, text); err != nil || z.Exchange["turns"] == nil {
			t.Errorf("of zone %s is told %v, want turns, and synced as a time", z.Zone, z.Exchange)
		}
	}

	synced := func() map[string]float64 {
		t.Helper()
		registry := prometheus.NewPedanticRegistry()
		if err := registerMetrics(registry, processStats); err != nil {
			t.Fatal(err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		values := make(map[string]float64)
		for _, f := range families {
			if f.GetName() == "caddy_rate_limit_synced_timestamp_seconds" {
				for _, m := range f.GetMetric() {
					values[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
		return values
	}
	redistest.Eventually(t, "both limits have had their first turn", func() bool { return synced()["told"] != 0 })
	now := float64(time.Now().Unix())
	if got := synced()["told"]; got < now-600 || got > now+600 {
		t.Errorf("the metric says that the zone was in step with redis at %f, it is %f now", got, now)
	}
	if at, ok := synced()["told-local"]; ok {
		t.Errorf("the metric says %v of a zone that is not exchanged", at)
	}
}
