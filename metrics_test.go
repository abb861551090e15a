package ratelimit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	ratesync "github.com/caddy-tide/ratelimit/sync"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

func someStats() ([]zoneStats, []storeStats) {
	return []zoneStats{
			{"m", 3, false, &ratesync.ExchangeStatus{Turns: 9, Synced: time.Unix(1_795_249_670, 5e8)}},
			{"m", 4, true, &ratesync.ExchangeStatus{Turns: 1, Synced: time.Unix(1_795_249_660, 0)}}, {"m", 0, false, nil},
			{"other\xff", 0, false, nil}, {"new", 0, false, new(ratesync.ExchangeStatus)},
		},
		[]storeStats{
			{"caddy", true, 10, 1, 100, 3, strict.Status{Open: 1, Of: 1, Trips: 2, Timeouts: 3}},
			{"caddy", false, 1, 5, 7, 1, strict.Status{Open: 4, Of: 64, Trips: 5, Timeouts: 6}}, {namespace: "shop", up: true, exchanges: 2},
		}
}

// scrape reads what a registry tells of zone m and of everything that has no zone, without the common part of names.
func scrape(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "caddy_rate_limit_")
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			if strings.HasSuffix(name, " m") || !strings.Contains(name, "decisions") {
				values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return values
}

func TestMetricsSurviveAReload(t *testing.T) {
	c := newZoneCounters("m")
	c.admit()
	c.overflowed()
	before := scrapeDecisions(t)
	for config := range 3 {
		registry := prometheus.NewPedanticRegistry()
		for range 2 { // two handlers of one configuration
			if err := registerMetrics(registry, someStats); err != nil {
				t.Fatal(err)
			}
		}
		newZoneCounters("m").refuse()
		want := map[string]float64{
			"decisions_total admitted m": before["decisions_total admitted m"], "decisions_total refused m": before["decisions_total refused m"] + float64(config+1),
			"decisions_total skipped m": 0, "decisions_total too_early m": 0, "decisions_total unavailable m": 0, "overflow_decisions_total m": before["overflow_decisions_total m"],
			"keys m": 7, "keys other?": 0, "sketch_in_use m": 1, "sketch_in_use other?": 0, "keys new": 0, "sketch_in_use new": 0,
			"synced_timestamp_seconds m": 1_795_249_660, "synced_timestamp_seconds new": 0, "redis_up caddy": 0, "redis_up shop": 1,
			"exchanges_total caddy failed": 6, "exchanges_total caddy ok": 11, "exchanges_total shop failed": 0, "exchanges_total shop ok": 2,
			"exchanged_keys_total caddy": 107, "exchanged_keys_total shop": 0, "failed_keys_total caddy": 4, "failed_keys_total shop": 0,
			"circuits_open caddy": 5, "circuit_trips_total caddy": 7, "strict_timeouts_total caddy": 9,
			"circuits_open shop": 0, "circuit_trips_total shop": 0, "strict_timeouts_total shop": 0,
		}
		if got := scrape(t, registry); !maps.Equal(got, want) {
			t.Errorf("configuration %d: got %v, want %v", config, got, want)
		}
	}
	if before["decisions_total admitted m"] < 1 || before["overflow_decisions_total m"] < 1 {
		t.Errorf("what was counted before the first configuration is lost: %v", before)
	}
}

// A zone that a reload removes, or gives another name, leaves no metrics behind; one that stays goes on.
func TestMetricsOfRemovedZonesEnd(t *testing.T) {
	shown := func() (all []string) {
		t.Helper()
		registry := prometheus.NewPedanticRegistry()
		if err := registerMetrics(registry, processStats); err != nil {
			t.Fatal(err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "zone" && strings.HasPrefix(l.GetValue(), "ended-") && !slices.Contains(all, l.GetValue()) {
						all = append(all, l.GetValue())
					}
				}
			}
		}
		slices.Sort(all)
		return all
	}
	stays := zoneBlock("ended-stays", "limit 9/1h")
	s := newSite(t, &App{}, stays+zoneBlock("ended-1", "limit 1/1h"))
	s.admits("1.2.3.4", 2, 1)
	for n := 2; n < 5; n++ {
		next := newSite(t, &App{}, stays+zoneBlock(fmt.Sprintf("ended-%d", n), fmt.Sprintf("limit %d/1h", n)))
		s.end()
		s = next
		s.admits("1.2.3.5", 1, 1)
		if got, want := shown(), []string{fmt.Sprintf("ended-%d", n), "ended-stays"}; !slices.Equal(got, want) {
			t.Errorf("after reload %d the metrics have zones %q, want %q", n-1, got, want)
		}
	}
	if _, err := trySite(t, &App{}, stays+zoneBlock("ended-bad", "limit 1/1h\nmatch {\nexpression 1+\n}")); err == nil {
		t.Error("a bad matcher was accepted")
	}
	registry := prometheus.NewPedanticRegistry()
	if err := registerMetrics(registry, processStats); err != nil {
		t.Fatal(err)
	}
	if n := counted(t, registry, "ended-stays"); n != 4 {
		t.Errorf("the zone that stays has counted %v admitted requests, want all 4", n)
	}
	s.end()
	if got := shown(); len(got) != 0 {
		t.Errorf("the metrics have zones %q of no configuration", got)
	}
}

// counted is how many requests a zone has admitted.
func counted(t *testing.T, registry *prometheus.Registry, zone string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["zone"] == zone && labels["decision"] == "admitted" {
				return m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// scrapeDecisions reads the counters as they are now; a test that runs again in this process finds them where it left them.
func scrapeDecisions(t *testing.T) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registerMetrics(registry, someStats); err != nil {
		t.Fatal(err)
	}
	return scrape(t, registry)
}

func TestCountersSwitchedOff(t *testing.T) {
	var c *zoneCounters
	c.admit()
	c.refuse()
	c.skip()
	c.lost()
	c.overflowed()
}

func TestCountingDoesNotAllocate(t *testing.T) {
	c := newZoneCounters("allocations")
	if n := testing.AllocsPerRun(100, func() {
		c.admit()
		c.refuse()
		c.skip()
		c.lost()
		c.overflowed()
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
