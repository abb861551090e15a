package redis_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// max_keys bounds what a strict zone puts into Redis: the keys that have a place in the node's
// table. For others shared counters decide.
func TestMaxKeysBoundsTheKeysOfAStrictZoneInRedis(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			const maxKeys, clients = 100, 2000
			r := redistest.Start(t)
			s := sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock("bounded", fmt.Sprintf("sync_rate 0\nlimit 1/30d 2/60d\nalgorithm %s\nmax_keys %d", algorithm, maxKeys)))
			denied := 0
			for i := range clients {
				ip := fmt.Sprintf("10.0.%d.%d", i/250, i%250)
				s.Get(ip)
				if s.Get(ip).Status == http.StatusTooManyRequests {
					denied++
				}
			}
			if denied != clients {
				t.Errorf("%d of %d clients were denied at their second request, want all", denied, clients)
			}
			names := r.Client().Keys(context.Background(), "test:*:bounded:*").Val()
			if most := maxKeys * 2; len(names) > most || len(names) < most/2 {
				t.Errorf("redis holds %d keys for a zone with max_keys %d and two limits, want at most %d", len(names), maxKeys, most)
			}
		})
	}
}
