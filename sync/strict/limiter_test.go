package strict

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// Windows so long that no test meets their boundary, except one run in years.
const long = 1000 * time.Hour

// kinds are rules of every algorithm that admit 100 requests at once.
var kinds = map[string]algorithms.Params{
	"token bucket": {Kind: algorithms.TokenBucket, Limit: 100, Window: long},
	"gcra":         {Kind: algorithms.GCRA, Limit: 50, Window: long, Burst: 100},
	"leaky bucket": {Kind: algorithms.LeakyBucket, Limit: 100, Window: long, Queue: 99},
}

// id is a key whose shard is the rest of n by 64.
func id(n int) (id [16]byte) {
	binary.BigEndian.PutUint64(id[:], uint64(n))
	for ratesync.ShardOf(keys.IDOf(id[:])) != n%ratesync.ShardCount {
		id[15]++
		if id[15] == 0 {
			id[14]++
		}
	}
	return id
}

// client connects by a URL as users do.
func client(t testing.TB, url string) redis.UniversalClient {
	t.Helper()
	set, err := redisconn.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	set.Timeout = patience // what waits less says so by its context
	return connect(t, set)
}

func connect(t testing.TB, set redisconn.Settings) redis.UniversalClient {
	t.Helper()
	c, err := set.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// A configuration is checked by making everything that it needs: that must not ask Redis.
func TestDoesNoNetworkIOBeforeItIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, "redis://127.0.0.1").(*redis.Client)
		c.Options().Dialer = func(context.Context, string, string) (net.Conn, error) {
			t.Error("a Limiter connects before it is asked")
			return nil, net.ErrClosed
		}
		s := New(c, "test", time.Second, zap.NewNop())
		time.Sleep(time.Hour)
		s.Close()
	})
}

func limiter(t testing.TB, url string) *Limiter {
	t.Helper()
	s := New(client(t, url), "test", patience, zap.NewNop())
	t.Cleanup(s.Close)
	return s
}

// take takes one unit and fails the test if Redis doesn't decide.
func take(t testing.TB, s *Limiter, zone string, key [16]byte, rules ...algorithms.Params) (Grant, []table.Taken) {
	t.Helper()
	all, g, err := s.Take(context.Background(), zone, rules, key, 1, nil)
	if err != nil {
		t.Fatalf("Take(%s) = %v", zone, err)
	}
	return g, all
}

// soon takes one unit with a Limiter that doesn't wait long. On a busy machine some replies come
// too late for it; what they granted is rolled back.
func soon(t testing.TB, s *Limiter, zone string, key [16]byte, rule algorithms.Params) (g Grant) {
	t.Helper()
	redistest.Eventually(t, "Redis decides", func() (ok bool) {
		var err error
		_, g, err = s.Take(context.Background(), zone, []algorithms.Params{rule}, key, 1, nil)
		return err == nil
	})
	return g
}

// drain takes until it is denied and returns how often it was admitted.
func drain(t testing.TB, s *Limiter, zone string, key [16]byte, rules ...algorithms.Params) (n int) {
	t.Helper()
	for {
		g, all := take(t, s, zone, key, rules...)
		if !g.Admitted() {
			denied := false
			for _, v := range all {
				denied = denied || !v.Decision.Allowed
			}
			if !denied {
				t.Fatalf("Take(%s) is denied, but no limit says so: %+v", zone, all)
			}
			return n
		}
		n++
	}
}

func TestLimitsOfAnySize(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	for name, rule := range kinds {
		for _, limit := range []int64{0, 1, 1 << 31, 1<<53 - 1, 1 << 53, math.MaxInt64} {
			t.Run(fmt.Sprint(name, " ", limit), func(t *testing.T) {
				rule := rule
				rule.Limit, rule.Burst, rule.Queue = limit, 0, max(0, limit-1)
				if limit == 0 && rule.Kind == algorithms.LeakyBucket {
					rule.Queue = 5
				}
				for i := range min(limit, 3) {
					g, all := take(t, s, t.Name(), id(1), rule)
					d := all[0].Decision
					if !g.Admitted() || rule.Kind != algorithms.LeakyBucket && (d.Remaining < limit-1-i || d.Remaining > limit-1) || d.Remaining < 0 {
						t.Fatalf("take %d of a limit of %d = %+v", i+1, limit, d)
					}
				}
				if limit > 1 {
					return
				}
				g, all := take(t, s, t.Name(), id(1), rule)
				d := all[0].Decision
				if g.Admitted() || d.Allowed || d.Retry <= 0 {
					t.Fatalf("Take() = %+v at a limit of %d that is spent", d, limit)
				}
				if limit == 0 && d.Retry != rule.Window {
					t.Fatalf("Take() = %+v at a limit of 0, want to retry after the window", d)
				}
			})
		}
	}
}

func TestReturnAndCharge(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	for name, rule := range kinds {
		t.Run(name, func(t *testing.T) {
			var all []Grant
			for range 100 {
				g, _ := take(t, s, name, id(1), rule)
				all = append(all, g)
			}
			for _, g := range all[:30] {
				s.Refund(g)
			}
			if got := drain(t, s, name, id(1), rule); got != 30 {
				t.Errorf("%d admitted after 30 were refunded, want 30", got)
			}
			g, _ := take(t, s, name, id(1), rule)
			s.Refund(g) // of a denial: nothing
			if got := drain(t, s, name, id(1), rule); got != 0 {
				t.Errorf("%d admitted after a denial was refunded, want 0", got)
			}
			s.Penalize(g)
			s.Refund(all[99])
			want := 1 // what is full takes no penalty
			if got := drain(t, s, name, id(1), rule); got != want {
				t.Errorf("%d admitted after a charge and a return, want %d", got, want)
			}
		})
	}
}

func TestWaiterLeaves(t *testing.T) {
	for name, rule := range kinds {
		t.Run(name, func(t *testing.T) {
			onALine(t, 10*time.Second, func(t *testing.T, l *line, s *Limiter) {
				take(t, s, name, id(1), rule)
				l.setTrip(time.Second)
				ctx, cancel := context.WithCancel(context.Background())
				var wg sync.WaitGroup
				for range 10 {
					wg.Go(func() {
						if _, _, err := s.Take(ctx, name, []algorithms.Params{rule}, id(1), 1, nil); !errors.Is(err, context.Canceled) {
							t.Errorf("Take() = %v, want that its context was canceled", err)
						}
					})
				}
				synctest.Wait() // the call is on its way
				cancel()
				wg.Wait()
				l.setTrip(0)
				if s.Down() {
					t.Error("a client that goes away is taken for a Redis that doesn't answer")
				}
				settles(t, s)
				want := 99
				if rule.Kind.Traits().Queues {
					want = 98 // the place of the one who was on its way stays taken
				}
				if got := drain(t, l.other(t), name, id(1), rule); got != want {
					t.Errorf("%d admitted after one, and ten who left, want %d", got, want)
				}
			})
		})
	}
}
