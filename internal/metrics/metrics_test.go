package metrics

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-tide/ratelimit/internal/answer"
)

func someState() State {
	return State{
		Zones: []ZoneState{
			{"m", 3, false, true, time.Unix(1_795_249_670, 5e8), "1m", 600, 100, true, 2}, {"m", 4, true, true, time.Unix(1_795_249_660, 0), "1h", 0, 80, false, 0},
			{Zone: "m"}, {Zone: "other\xff"}, {Zone: "new", Syncs: true},
		},
		Redis: []RedisState{
			{"caddy", true, 10, 1, 100, 3, 1, 2, 3}, {"caddy", false, 1, 5, 7, 1, 4, 5, 6}, {Namespace: "shop", Up: true, Syncs: 2},
		},
		Bandwidths: []BandwidthState{{"m", 2, 1000, 3 * time.Second}, {"m", 1, 24, time.Second / 2}},
		Regions:    []RegionState{{"us", true, 1.5, 3, -0.2, 10}, {"us", false, 0.5, 7, 0.1, 5}, {Region: "asia", Up: true}},
		Controls:   []ControlState{{"caddy", 2, true}, {"caddy", 3, false}, {Namespace: "shop", Applied: true}},
		Bans:       []BanState{{"m", 2}, {"m", 3}, {"other", 0}},
	}
}

// scrape reads what a registry has of zone m and of everything that has no zone, without the
// common part of names.
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
			if strings.HasSuffix(name, " m") || !strings.Contains(name, "decisions") && !strings.Contains(name, "defaults") {
				values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return values
}

func TestMetricsSurviveAReload(t *testing.T) {
	c := NewZoneCounters("m")
	c.Count(answer.Admitted)
	c.CountEvent(Overflow)
	c.CountEvent(Near)
	c.CountEvent(LimitDefault)
	c.CountEvent(CostDefault)
	c.WithUnits(true)
	c.CountUnits(UnitsAdmitted, 5)
	c.CountUnits(UnitsDenied, 7)
	c.CountSettled(5, 3)
	c.CountSettled(5, 5)
	c.CountSettled(3, 6)
	c.CountEvent(CostEncoded)
	before := scrapeDecisions(t)
	for config := range 3 {
		registry := prometheus.NewPedanticRegistry()
		for range 2 { // two handlers of one configuration
			if err := Register(registry, someState); err != nil {
				t.Fatal(err)
			}
		}
		NewZoneCounters("m").Count(answer.Denied)
		want := map[string]float64{
			"decisions_total admitted m": before["decisions_total admitted m"], "decisions_total denied m": before["decisions_total denied m"] + float64(config+1),
			"decisions_total reserved m": 0, "decisions_total skipped m": 0, "decisions_total too_early m": 0, "decisions_total unavailable m": 0, "decisions_total would_deny m": 0, "overflow_decisions_total m": before["overflow_decisions_total m"],
			"near_limit_total m":  before["near_limit_total m"],
			"limit_requests 1m m": 600, "limit_requests 1h m": 0, "burst_requests m": 80, "concurrent_requests m": 2, "keys m": 7, "keys other?": 0, "sketch_in_use m": 1, "sketch_in_use other?": 0, "keys new": 0, "sketch_in_use new": 0,
			"bandwidth_responses m": 3, "bandwidth_bytes_total m": 1024, "bandwidth_wait_seconds_total m": 3.5,
			"limit_defaults_total m": before["limit_defaults_total m"],
			"cost_defaults_total m":  before["cost_defaults_total m"],
			"units_total admitted m": before["units_total admitted m"], "units_total denied m": before["units_total denied m"], "units_total refunded m": before["units_total refunded m"], "units_total charged m": before["units_total charged m"],
			"response_cost_missing_total absent m": 0, "response_cost_missing_total bad m": 0, "response_cost_missing_total gone m": 0,
			"response_cost_missing_total encoded m": before["response_cost_missing_total encoded m"],
			"decisions_total too_large m":           0,
			"last_sync_timestamp_seconds m":         1_795_249_660, "last_sync_timestamp_seconds new": 0, "redis_up caddy": 0, "redis_up shop": 1,
			"syncs_total caddy failed": 6, "syncs_total caddy ok": 11, "syncs_total shop failed": 0, "syncs_total shop ok": 2,
			"synced_keys_total caddy": 107, "synced_keys_total shop": 0, "failed_keys_total caddy": 4, "failed_keys_total shop": 0,
			"circuits_open caddy": 5, "circuit_trips_total caddy": 7, "strict_timeouts_total caddy": 9,
			"overrides caddy": 5, "overrides shop": 0, "banned_keys m": 5, "banned_keys other": 0, "decisions_total banned m": 0, "control_applied caddy": 0, "control_applied shop": 1,
			"region_up us": 0, "region_lag_seconds us": 1.5, "region_backlog us": 7, "region_clock_offset_seconds us": -0.2, "region_messages_total us": 15,
			"region_up asia": 1, "region_lag_seconds asia": 0, "region_backlog asia": 0, "region_clock_offset_seconds asia": 0, "region_messages_total asia": 0,
			"circuits_open shop": 0, "circuit_trips_total shop": 0, "strict_timeouts_total shop": 0,
		}
		if got := scrape(t, registry); !maps.Equal(got, want) {
			t.Errorf("configuration %d: got %v, want %v", config, got, want)
		}
	}
	if before["decisions_total admitted m"] < 1 || before["overflow_decisions_total m"] < 1 || before["near_limit_total m"] < 1 || before["limit_defaults_total m"] < 1 || before["cost_defaults_total m"] < 1 {
		t.Errorf("what was counted before the first configuration is lost: %v", before)
	}
	for name, least := range map[string]float64{"admitted": 5, "denied": 7, "refunded": 2, "charged": 3} {
		if n := before["units_total "+name+" m"]; n < least {
			t.Errorf("%v units are %s, want %v", n, name, least)
		}
	}
	if n := before["response_cost_missing_total encoded m"]; n < 1 {
		t.Errorf("%v compressed figures, want 1", n)
	}
}

// scrapeDecisions reads the counters as they are now; a test that runs again in this process finds
// them where it left them.
func scrapeDecisions(t *testing.T) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := Register(registry, someState); err != nil {
		t.Fatal(err)
	}
	return scrape(t, registry)
}

func TestCountersSwitchedOff(t *testing.T) {
	var c *ZoneCounters
	c.Count(answer.Admitted)
	c.Count(answer.Denied)
	c.Count(answer.Skipped)
	c.Count(answer.Unavailable)
	c.CountEvent(Overflow)
	c.CountEvent(Near)
}

func TestCountingDoesNotAllocate(t *testing.T) {
	c := NewZoneCounters("allocations")
	if n := testing.AllocsPerRun(100, func() {
		c.Count(answer.Admitted)
		c.Count(answer.Denied)
		c.Count(answer.Skipped)
		c.Count(answer.Unavailable)
		c.CountEvent(Overflow)
		c.CountEvent(Near)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
