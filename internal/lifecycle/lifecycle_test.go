package lifecycle

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// State and Current answer while a configuration ends that goes by a borrowed client, whose Redis
// doesn't answer.
func TestStateDoesNotWaitForAStop(t *testing.T) {
	server := redistest.Start(t)
	proxy := faultproxy.Start(t, server.Addr)
	server.Addr = proxy.Addr
	c := borrowing(t, server, "waits", time.Hour)
	z := c.zones[0]
	c.Start()
	redistest.Eventually(t, "the first sync", func() bool {
		first := true
		for l := range z.Each {
			sync := l.Sync()
			first = first && sync != nil && !sync.Synced.IsZero()
		}
		return first && c.Redis.Replicator.Status().Up
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
