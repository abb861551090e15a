package metrics

import (
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-tide/ratelimit/internal/answer"
)

func someState(s Scrape) {
	for _, m := range Described {
		switch m {
		case LimitRequests:
			s.Add(m, 600, "m", "1m")
			s.Add(m, 1, "m", "1h")
			s.Add(m, 0, "m", "1h")
		case Syncs:
			s.Add(m, 10, "caddy", "ok")
			s.Add(m, 1, "caddy", "ok")
			s.Add(m, 0, "other\xff", "failed")
		default:
			s.Add(m, 3, "m")
			s.Add(m, -4, "m")
			s.Add(m, 0, "other\xff")
		}
	}
	s.AddBool(RedisUp, true, "caddy")
	s.AddBool(RedisUp, false, "caddy")
	s.AddBool(RedisUp, true, "shop")
}

// nameOf is the name of a metric without the common part.
func nameOf(m *Metric) string {
	_, rest, _ := strings.Cut(m.String(), "caddy_rate_limit_")
	name, _, _ := strings.Cut(rest, `"`)
	return name
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
			"near_limit_total m":     before["near_limit_total m"],
			"limit_defaults_total m": before["limit_defaults_total m"],
			"cost_defaults_total m":  before["cost_defaults_total m"],
			"units_total admitted m": before["units_total admitted m"], "units_total denied m": before["units_total denied m"], "units_total refunded m": before["units_total refunded m"], "units_total charged m": before["units_total charged m"],
			"response_cost_missing_total absent m": 0, "response_cost_missing_total bad m": 0, "response_cost_missing_total gone m": 0,
			"response_cost_missing_total encoded m": before["response_cost_missing_total encoded m"],
			"decisions_total too_large m":           0,
			"decisions_total banned m":              0,
			"limit_requests 1m m":                   600, "limit_requests 1h m": 0, // the latest
			"syncs_total caddy ok": 11, "syncs_total other? failed": 0,
			"redis_up caddy": 0, "redis_up shop": 1,
		}
		// Of two tables, namespaces or regions: the least, the greatest, what is further from 0, or
		// else the sum.
		for _, m := range Described {
			name := nameOf(m)
			switch m {
			case LimitRequests, Syncs:
				continue
			case LastSync, Burst, RedisUp, ControlApplied, RegionUp, RegionClockOffset:
				want[name+" m"] = -4
			case SketchInUse, RegionLag, RegionBacklog:
				want[name+" m"] = 3
			default:
				want[name+" m"] = -1
			}
			want[name+" other?"] = 0
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
