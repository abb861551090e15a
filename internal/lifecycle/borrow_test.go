package lifecycle

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// redisTimeout is that of calls, which no stall of a machine is to end.
const redisTimeout = 20 * time.Second

// borrowing returns a configuration with one zone, which goes by a client of its own. As one of
// this module the client goes by the contexts of its calls.
func borrowing(t *testing.T, server *redistest.Server, zone string, rate time.Duration) *Config {
	t.Helper()
	client := server.Client()
	client.Options().ReadTimeout, client.Options().ContextTimeoutEnabled = redisTimeout, true
	redis := limits.BorrowRedis(client, limits.RedisOptions{Namespace: "borrow", Timeout: redisTimeout, StrictTimeout: redisTimeout, Logger: zap.NewNop()})
	z, err := limits.NewZone(limits.ZoneOptions{
		Settings: config.Settings{
			Name: zone, Key: "all", Limits: []config.Rate{{Limit: 10, Window: 1000 * time.Hour}}, SubWindows: 1, MaxKeys: 100,
			IPv4Prefix: 32, IPv6Prefix: 64, SyncRate: config.SyncRate(rate),
		},
		Namespace: "borrow", Redis: redis, Sweep: time.Minute, Logger: zap.NewNop(), Once: new(warning.Once),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(z.Release)
	c := &Config{Logger: zap.NewNop(), Redis: redis, StrictTimeout: redisTimeout, Namespace: "borrow"}
	c.Add(z)
	return c
}

// settle waits until the control record is read, and all that was counted is sent.
func settle(t *testing.T, c *Config) {
	t.Helper()
	redistest.Eventually(t, "the record is read", c.Control().IsEqual)
	redistest.Eventually(t, "all is sent", func() bool {
		for l := range c.Each {
			if l.Totals().Unsent > 0 || l.Syncer.UnavailableShards() != 0 {
				return false
			}
		}
		return true
	})
}

// A reload that borrows another client of the same server brings along what was changed at run
// time, at once, and what was reset is not forgiven again. One to another server brings nothing.
func TestAReloadWithABorrowedClient(t *testing.T) {
	server, other := redistest.Start(t), redistest.Start(t)
	raw := []byte("key")
	id := keys.IDOf(raw)
	left := func(c *Config) (left int64) {
		for l := range c.Each {
			left, _ = l.Table.Room(l.Effective, keys.KeyOf(raw), raw, clock.Now())
		}
		return left
	}
	take := func(c *Config, n int) {
		for l := range c.Each {
			for range n {
				l.Take(keys.KeyOf(raw), raw, clock.Now(), 1, 0)
			}
		}
	}
	first := borrowing(t, server, "login", 50*time.Millisecond)
	first.Start()
	take(first, 9)
	target, none := control.Target{Zone: "login", Key: &id}, 0.0
	if o, forgiven, err := first.Control().Reset(context.Background(), control.Change{Target: target, For: time.Hour}); err != nil || o.Applied != 1 || forgiven != 9 {
		t.Fatalf("Reset = %+v, %d, %v, want 9 forgiven", o, forgiven, err)
	}
	take(first, 3)
	server.Kill() // a change that Redis has yet to be told of
	unheard, hear := context.WithCancel(t.Context())
	hear() // nobody can acknowledge it, so it doesn't wait for that
	if _, err := first.Control().Change(unheard, control.Change{Target: control.Target{Zone: "login"}, Body: control.Body{Share: &none}, For: time.Hour}); err != nil {
		t.Fatal(err)
	}
	second := borrowing(t, server, "login", 50*time.Millisecond)
	second.Start()
	isOff := func(c *Config) bool {
		r := c.Control().Zone("login").Load()
		return r != nil && r.Enforce != nil && r.Enforce.IsOff()
	}
	if !isOff(second) {
		t.Error("a change that Redis was not told of doesn't hold after the reload")
	}
	server.Restart()
	first.Stop()
	settle(t, second)
	if got := left(second); got != 7 || !isOff(second) {
		t.Errorf("after the reload %d are left and the zone is off: %t, want 7 and true", got, isOff(second))
	}
	third := borrowing(t, other, "login", 50*time.Millisecond)
	third.Start()
	second.Stop()
	settle(t, third)
	if got := left(third); got != 7 || isOff(third) {
		t.Errorf("with another server %d are left and the zone is off: %t, want 7 and false", got, isOff(third))
	}
	third.Stop()
}
