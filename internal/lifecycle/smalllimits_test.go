package lifecycle

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// zoneWith is a zone with some limits a minute and a Redis, as if it were compiled.
func zoneWith(t *testing.T, s config.Settings, all []int64) *limits.Zone {
	s.MaxKeys, s.IPv4Prefix, s.IPv6Prefix, s.SubWindows = 10, 32, 64, 1
	for i, n := range all {
		s.Limits = append(s.Limits, config.Rate{Limit: n, Window: time.Duration(i+1) * time.Minute})
	}
	z, err := limits.NewZone(limits.ZoneOptions{Settings: s, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(z.Release)
	z.Redis = new(limits.Redis)
	return z
}

// A limit below twenty times the nodes is told of once a zone, where it syncs at an interval and is
// enforced; when there are several nodes for long enough, and not again when they come and go.
func TestALimitThatIsSmallForItsNodes(t *testing.T) {
	zoneOf := func(name string, rate config.SyncRate, share float64, all ...int64) *limits.Zone {
		return zoneWith(t, config.Settings{Name: name, SyncRate: rate, Enforce: config.Enforce(share)}, all)
	}
	const interval = config.SyncRate(time.Second)
	alone := zoneOf("alone", interval, 1, 10)
	alone.Redis = nil
	for name, c := range map[string]struct {
		zones []*limits.Zone
		nodes int64
		want  []string
	}{
		"twice nineteen":    {[]*limits.Zone{zoneOf("a", interval, 1, 39)}, 2, []string{"a 39 2 40"}},
		"twice twenty":      {[]*limits.Zone{zoneOf("a", interval, 1, 40)}, 2, nil},
		"ten of ten nodes":  {[]*limits.Zone{zoneOf("a", interval, 1, 10)}, 10, []string{"a 10 10 19"}},
		"one node":          {[]*limits.Zone{zoneOf("a", interval, 1, 1)}, 1, nil},
		"several limits":    {[]*limits.Zone{zoneOf("a", interval, 1, 1000, 5, 20)}, 10, []string{"a 5 10 14"}},
		"one for some keys": {[]*limits.Zone{zoneOf("a", interval, 0.1, 10)}, 10, []string{"a 10 10 19"}},
		"two handlers":      {[]*limits.Zone{zoneOf("a", interval, 1, 10), zoneOf("a", interval, 1, 10), zoneOf("b", interval, 1, 10)}, 10, []string{"a 10 10 19", "b 10 10 19"}},
		"nothing of these": {[]*limits.Zone{
			alone, zoneOf("strict", config.Strict, 1, 10), zoneOf("local", config.Local, 1, 10), zoneOf("shadow", interval, 0, 10), zoneOf("closed", interval, 1, 0), zoneOf("none", interval, 1),
		}, 10, nil},
	} {
		core, logs := observer.New(zap.WarnLevel)
		config := &Config{Logger: zap.New(core), zones: c.zones}
		for range 10 { // a node is replaced now and then
			for range smallFor - 1 {
				config.checkSmallLimits(c.nodes)
			}
			config.checkSmallLimits(1)
		}
		if logs.Len() > 0 {
			t.Errorf("%s: it warns of moments", name)
		}
		for _, nodes := range []int64{c.nodes, 1, c.nodes} {
			for range 2 * smallFor {
				config.checkSmallLimits(nodes)
			}
		}
		quiet := &Config{Logger: zap.New(core), zones: c.zones, Once: &warning.Once{Quiet: []string{warning.SmallLimit}}}
		for range 2 * smallFor {
			quiet.checkSmallLimits(c.nodes)
		}
		var got []string
		for _, entry := range logs.All() {
			f := entry.ContextMap()
			if f["code"] != warning.SmallLimit {
				t.Errorf("%s: %v", name, f)
			}
			got = append(got, fmt.Sprint(f["zone"], " ", f["limit"], " ", f["nodes"], " ", f["may_admit"]))
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
