package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// costs has a client make a request that costs so many units, by a variable that no client sets.
func (s *site) costs(ip string, n any, change ...func(*http.Request)) reply {
	r := s.request(ip, change...)
	caddyhttp.SetVar(r.Context(), "units", fmt.Sprint(n))
	return s.send(r)
}

// In a strict zone a request takes what it costs as a whole, in each algorithm. What is too large
// leaves Redis as it is; what costs nothing is admitted at the limit.
func TestCostsInAStrictZone(t *testing.T) {
	for _, algorithm := range []string{
		"sliding_window", "sliding_window\nbuckets 10", "fixed_window", "sliding_log", "token_bucket", "gcra",
	} {
		t.Run(algorithm, func(t *testing.T) {
			server := redistest.Start(t)
			s := newSite(t, appWith(server), zoneBlock("costly", "limit 100/1000h\nsync_rate strict\non_redis_loss deny\ncost {http.vars.units}\ncost_default 7\nalgorithm "+algorithm))
			for range 1000 {
				if a := s.costs("1.2.3.4", 101); a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "" {
					t.Fatalf("what is too large: %d %v", a.status, a.header)
				}
			}
			if keys, _ := server.Do("KEYS", "test:*:costly:*").([]any); len(keys) != 0 {
				t.Errorf("redis has %v for what is too large", keys)
			}
			for i, c := range []struct {
				cost any
				want int
			}{{60, 200}, {41, 429}, {33, 200}, {8, 429}, {"six", 200}, {1, 429}, {0, 200}, {0, 200}} {
				if got := s.costs("1.2.3.4", c.cost).status; got != c.want {
					t.Errorf("request %d, cost %v: %d, want %d", i, c.cost, got, c.want)
				}
			}
		})
	}
}

// When all responses have begun, Redis holds exactly what those cost that count, whatever costs
// were reserved at once, and whoever was denied.
func TestRedisHoldsTheSumOfWhatCounted(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log"} {
		t.Run(algorithm, func(t *testing.T) {
			server := redistest.Start(t)
			s := newSite(t, appWith(server), zoneBlock("law", "limit 1000/80000h\nsync_rate strict\ncount_responses 2xx\ncost {http.vars.units}\ncost_default 7\nalgorithm "+algorithm))
			var mu sync.Mutex
			sum, refunded, left := 0, 0, ""
			s.next = func(w http.ResponseWriter, r *http.Request) error {
				n := 0
				_, _ = fmt.Sscan(valueOf(r, "http.rate_limit.law.cost"), &n)
				mu.Lock()
				defer mu.Unlock()
				if r.Header.Get("Fails") != "" {
					refunded += n
					w.WriteHeader(http.StatusInternalServerError)
				} else {
					sum += n
				}
				return nil
			}
			var all sync.WaitGroup
			random := rand.New(rand.NewPCG(1, 5))
			for range 200 {
				n, fails := 1+random.IntN(30), header("Kept", "1")
				if random.IntN(2) == 0 {
					fails = header("Fails", "1")
				}
				all.Go(func() { s.costs("1.2.3.4", n, fails) })
			}
			all.Wait()
			s.next = func(w http.ResponseWriter, r *http.Request) error {
				left = valueOf(r, "http.rate_limit.law.remaining")
				return nil
			}
			want := fmt.Sprint(1000 - sum)
			redistest.Eventually(t, "redis holds what counted", func() bool {
				s.costs("1.2.3.4", 0)
				return left == want
			})
			if sum == 0 || refunded == 0 || sum > 1000 {
				t.Errorf("%d counted and %d were refunded, of 1000", sum, refunded)
			}
		})
	}
}

// `divide` makes an ordinary cost look too large for ever: by the whole limit it is not, so without
// Redis it is denied for now, and an estimate is lowered to this node's share.
func TestAShareMakesNoCostTooLarge(t *testing.T) {
	r := redistest.Start(t)
	const options = "\n}\nlimit 10/1h\nsync_rate strict\nalgorithm fixed_window\non_redis_loss divide\ncost 7"
	s := newSite(t, appWith(r), zoneBlock("share-cost", "match {\npath /cost"+options)+zoneBlock("share-estimate", "match {\npath /estimate"+options+"\nresponse_cost header X-Cost"))
	r.Do("HSET", "test:2:{0}:nodes", "other", fmt.Sprint("1 ", time.Now().Add(time.Hour).UnixMilli()))
	redistest.Eventually(t, "two nodes", func() bool { return s.app.shared.Replicator.Nodes() == 2 })
	r.Kill()
	if a := s.get("1.2.3.4", to("/cost")); a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" || strings.Contains(a.body, "At most") {
		t.Errorf("a cost of 7 of 10, with a share of 5: %d %v %s", a.status, a.header, a.body)
	}
	cost := ""
	s.next = func(_ http.ResponseWriter, r *http.Request) error {
		cost = valueOf(r, "http.rate_limit.share-estimate.cost")
		return nil
	}
	if a := s.get("1.2.3.4", to("/estimate")); a.status != http.StatusOK || cost != "5" {
		t.Errorf("an estimate of 7 of 10, with a share of 5: %d, and %q are reserved", a.status, cost)
	}
}
