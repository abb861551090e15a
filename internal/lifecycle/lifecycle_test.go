package lifecycle

import (
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// State and Current answer while a configuration ends that goes by a borrowed client, whose Redis
// doesn't answer.
func TestStateDoesNotWaitForAStop(t *testing.T) {
	server := redistest.Start(t)
	proxy := faultproxy.Start(t, server.Addr)
	server.Addr = proxy.Addr
	client := server.Client()
	// As a client of this module, which goes by the contexts of its calls.
	client.Options().ReadTimeout, client.Options().ContextTimeoutEnabled = time.Minute, true
	defer client.Close()
	redis := limits.BorrowRedis(client, limits.RedisOptions{Namespace: "test", Timeout: time.Minute, StrictTimeout: time.Minute, Logger: zap.NewNop()})
	z, err := limits.NewZone(limits.ZoneOptions{
		Settings: config.Settings{
			Name: "waits", Key: "all", Limits: []config.Rate{{Limit: 10, Window: 30 * 24 * time.Hour}}, SubWindows: 1, MaxKeys: 100,
			IPv4Prefix: 32, IPv6Prefix: 64, SyncRate: config.SyncRate(time.Hour),
		},
		Redis: redis, Sweep: time.Minute, Logger: zap.NewNop(), Once: new(warning.Once),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer z.Release()
	c := &Config{Logger: zap.NewNop(), Redis: redis, StrictTimeout: time.Minute}
	c.Add(z)
	c.Start()
	redistest.Eventually(t, "the first sync", func() bool {
		first := true
		for l := range z.Each {
			sync := l.Sync()
			first = first && sync != nil && !sync.Synced.IsZero()
		}
		return first && redis.Replicator.Status().Up
	})
	proxy.Set(faultproxy.Blackhole)
	raw := []byte("key")
	for l := range z.Each {
		l.Take(keys.KeyOf(raw), raw, clock.Now(), 3, 0)
	}
	// The requests are counted while others stop to be: answers before Stop has begun to wait for
	// Redis, and after it has ended, say nothing.
	swallowed, ended, answers := proxy.Requests(), make(chan struct{}), 0
	go func() {
		defer close(ended)
		c.Stop()
	}()
	for hasEnded := false; !hasEnded; {
		isWaiting := Current() == nil && proxy.Requests() > swallowed
		Collect(metrics.Scrape{})
		select {
		case <-ended:
			hasEnded = true
		default:
			if isWaiting {
				answers++
			}
		}
	}
	if answers < 2 { // where State waits, one may come just before Stop returns
		t.Errorf("%d answers while Stop waits for a Redis that doesn't answer, want 2 at least", answers)
	}
}
