package behaviour_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// A zone that a reload removes, or gives another name, leaves no metrics behind; one that stays
// goes on.
func TestMetricsOfRemovedZonesEnd(t *testing.T) {
	shown := func() (all []string) {
		t.Helper()
		sitetest.Scrape(t, func(_ string, labels map[string]string, _ float64) {
			if zone := labels["zone"]; strings.HasPrefix(zone, "ended-") && !slices.Contains(all, zone) {
				all = append(all, zone)
			}
		})
		slices.Sort(all)
		return all
	}
	stays := sitetest.ZoneBlock("ended-stays", "limit 9/30d")
	s := sitetest.NewSite(t, &ratelimit.App{}, stays+sitetest.ZoneBlock("ended-1", "limit 1/30d"))
	s.Admits("1.2.3.4", 2, 1)
	for n := 2; n < 5; n++ {
		next := sitetest.NewSite(t, &ratelimit.App{}, stays+sitetest.ZoneBlock(fmt.Sprintf("ended-%d", n), fmt.Sprintf("limit %d/30d", n)))
		s.End()
		s = next
		s.Admits("1.2.3.5", 1, 1)
		if got, want := shown(), []string{fmt.Sprintf("ended-%d", n), "ended-stays"}; !slices.Equal(got, want) {
			t.Errorf("after reload %d the metrics have zones %q, want %q", n-1, got, want)
		}
	}
	if _, err := sitetest.TrySite(t, &ratelimit.App{}, stays+sitetest.ZoneBlock("ended-bad", "limit 1/30d\nmatch {\nexpression 1+\n}")); err == nil {
		t.Error("a bad matcher was accepted")
	}
	if n := sitetest.DecidedAs(t, "ended-stays", "admitted"); n != 4 {
		t.Errorf("the zone that stays has counted %v admitted requests, want all 4", n)
	}
	s.End()
	if got := shown(); len(got) != 0 {
		t.Errorf("the metrics have zones %q of no configuration", got)
	}
}

// The limits are those of the current configuration, and so is the burst.
func TestMetricsOfLimits(t *testing.T) {
	shown := func() map[string]float64 {
		t.Helper()
		all := map[string]float64{}
		sitetest.Scrape(t, func(name string, labels map[string]string, value float64) {
			if name = strings.TrimPrefix(name, "caddy_rate_limit_"); labels["zone"] == "gauged" && strings.HasSuffix(name, "t_requests") {
				all[strings.TrimSpace(name+" "+labels["window"])] = value
			}
		})
		return all
	}
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("gauged", "limit 10/30d 200/60d\nalgorithm token_bucket"))
	if got, want := shown(), map[string]float64{"limit_requests 30d": 10, "limit_requests 60d": 200, "burst_requests": 10}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	next := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("gauged", "limit 20/30d\nalgorithm gcra\nburst 5"))
	s.End()
	if got, want := shown(), map[string]float64{"limit_requests 30d": 20, "burst_requests": 5}; !maps.Equal(got, want) {
		t.Errorf("after a reload: got %v, want %v", got, want)
	}
	next.End()
	if got := shown(); len(got) > 0 {
		t.Errorf("without a configuration: %v, want nothing", got)
	}
}

// Where the log has a line of a denied key, the counter of the decision has its id, as an exemplar.
func TestExemplarsNameAKey(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("exemplar", "limit 1/30d"))
	s.Admits("192.0.2.1", 2, 1)
	shadow := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("exemplar-shadow", "limit 1/30d\nenforce off"))
	shadow.Admits("192.0.2.2", 2, 2)
	registry := prometheus.NewPedanticRegistry()
	if err := metrics.Register(registry, lifecycle.Collect); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetCounter().GetExemplar().GetLabel() {
				if zone := m.GetLabel()[1].GetValue(); strings.HasPrefix(zone, "exemplar") {
					got[zone+" "+m.GetLabel()[0].GetValue()+" "+l.GetName()] = l.GetValue()
				}
			}
		}
	}
	want := map[string]string{
		"exemplar denied key_id":            keys.IDOf(rawKey(s, "192.0.2.1")).Short(),
		"exemplar-shadow would_deny key_id": keys.IDOf(rawKey(shadow, "192.0.2.2")).Short(),
	}
	if !maps.Equal(got, want) {
		t.Errorf("the exemplars are %v, want %v", got, want)
	}
}
