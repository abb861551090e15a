package lifecycle

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/warning"
	ratesync "github.com/caddy-tide/ratelimit/sync"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// A Redis that is too far away for a setting is told of once, with what to write, and a moment in
// which it is far is not.
func TestARedisThatIsTooFar(t *testing.T) {
	const ms = time.Millisecond
	zoneOf := func(name string, rate time.Duration, redis *limits.Redis) *limits.Zone {
		return &limits.Zone{ZoneOptions: limits.ZoneOptions{Settings: config.Settings{Name: name, SyncRate: config.SyncRate(rate)}, Redis: redis}}
	}
	redis := new(limits.Redis)
	for name, c := range map[string]struct {
		zones []*limits.Zone
		trip  time.Duration
		want  map[string]any
	}{
		"near":          {[]*limits.Zone{zoneOf("a", 0, redis), zoneOf("b", 200*ms, redis)}, 50 * ms, nil},
		"not known":     {[]*limits.Zone{zoneOf("a", 0, redis)}, 0, nil},
		"nothing syncs": {[]*limits.Zone{zoneOf("a", -1, redis), zoneOf("b", 0, nil)}, time.Second, nil},
		"strict": {[]*limits.Zone{zoneOf("a", 0, redis), zoneOf("b", time.Second, redis)}, 130 * ms, map[string]any{
			"strict_timeout": "100ms", "write_strict_timeout": "390ms"}},
		"intervals": {[]*limits.Zone{zoneOf("a", 500*ms, redis), zoneOf("b", 100*ms, redis), zoneOf("c", time.Second, redis), zoneOf("b", 100*ms, redis)}, 130 * ms, map[string]any{
			"zones": []any{"a", "b"}, "sync_rate": "100ms", "write_sync_rate": "1.3s"}},
	} {
		core, logs := observer.New(zap.WarnLevel)
		config := &Config{Logger: zap.New(core), StrictTimeout: 100 * ms, zones: c.zones}
		for range 100 {
			for range farFor - 1 {
				config.checkDistance(c.trip)
			}
			config.checkDistance(0)
		}
		if logs.Len() > 0 {
			t.Errorf("%s: it warns of moments", name)
		}
		for range 100 {
			config.checkDistance(c.trip)
		}
		if c.want == nil {
			if logs.Len() > 0 {
				t.Errorf("%s: %v, want no warning", name, logs.All())
			}
			continue
		}
		c.want["code"], c.want["round_trip"] = warning.FarRedis, "130ms"
		quiet := &Config{Logger: zap.New(core), StrictTimeout: 100 * ms, zones: c.zones, Once: &warning.Once{Quiet: []string{warning.FarRedis}}}
		for range 2 * farFor {
			quiet.checkDistance(c.trip)
		}
		if logs.Len() != 1 || fmt.Sprint(logs.All()[0].ContextMap()) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want one warning with %v", name, logs.All(), c.want)
		}
		config.setAsTold(c.want)
		if left := config.tooShort(c.trip); left != nil {
			t.Errorf("%s: what it says to write is too short as well: %v", name, left)
		}
	}
}

// setAsTold has the settings be what a warning says to write.
func (c *Config) setAsTold(told map[string]any) {
	if d, err := time.ParseDuration(fmt.Sprint(told["write_strict_timeout"])); err == nil {
		c.StrictTimeout = d
	}
	if d, err := time.ParseDuration(fmt.Sprint(told["write_sync_rate"])); err == nil {
		for _, z := range c.zones {
			if z.SyncRate > 0 {
				z.SyncRate = max(z.SyncRate, config.SyncRate(d))
			}
		}
	}
}

// A circuit that is open because Redis is too far says how far it is, also where no heartbeat does.
func TestTheRoundTripThatACircuitMeasures(t *testing.T) {
	server := redistest.Start(t)
	proxy := faultproxy.Start(t, server.Addr)
	set, err := redisconn.ParseURL("redis://" + proxy.Addr)
	if err != nil {
		t.Fatal(err)
	}
	set.Timeout = redisTimeout
	client, err := set.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r := limits.BorrowRedis(client, limits.RedisOptions{Namespace: "test", Timeout: set.Timeout, StrictTimeout: 100 * time.Millisecond, Logger: zap.NewNop()})
	defer r.Close()
	const delay = 300 * time.Millisecond
	proxy.SetDelay(delay)
	p, raw := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1, Window: 30 * 24 * time.Hour}, []byte("key")
	tab := table.New[algorithms.BucketState](p.Kind, 100)
	tab.Prepare(table.SyncConfig{Params: p, Rate: time.Second, AtOnce: true, Waker: cycle.NewWaker()})
	ask := &strict.Request{
		Counters: []strict.Counter{{Table: tab, Source: ratesync.NewSource(tab, ratesync.SpecOf("z", p))}},
		Limits:   []algorithms.Limit{p.Compile()}, Key: keys.KeyOf(raw), Raw: raw, N: 1,
	}
	redistest.Eventually(t, "the round trip is known", func() bool {
		_, _ = r.Strict.Ask(t.Context(), "z", ask, nil)
		return roundTrip(r) > 0
	})
	if got := roundTrip(r); got < delay {
		t.Errorf("a round trip of %s to a redis %s away", got, delay)
	}
}
