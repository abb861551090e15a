package sitetest

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/metrics"
)

// Scrape reads all metrics, as Prometheus does.
func Scrape(t *testing.T, each func(name string, labels map[string]string, value float64)) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := metrics.Register(registry, lifecycle.Collect); err != nil {
		t.Fatal(err)
	}
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
			each(f.GetName(), labels, m.GetCounter().GetValue()+m.GetGauge().GetValue())
		}
	}
}

// DecidedAs is on how many requests a zone has decided so.
func DecidedAs(t *testing.T, zone, decision string) (n int) {
	t.Helper()
	Scrape(t, func(_ string, labels map[string]string, value float64) {
		if labels["zone"] == zone && labels["decision"] == decision {
			n = int(value)
		}
	})
	return n
}
