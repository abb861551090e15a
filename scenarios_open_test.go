package ratelimit

import (
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/limits"
)

// openScenarioRedis has the process use a client in place of the one it would make.
func openScenarioRedis(t *testing.T, key, namespace string, connect func() (redis.UniversalClient, error)) interface{ Release() } {
	r, err := limits.OpenRedis(key, limits.RedisOptions{
		Namespace: namespace, Timeout: time.Second, StrictTimeout: 100 * time.Millisecond, Logger: caddy.Log().Named("rate_limit"),
	}, connect)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
