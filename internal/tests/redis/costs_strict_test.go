package redis_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// costs has a client make a request that costs so many units, by a variable that no client sets.
func costs(s *sitetest.Site, ip string, n any, change ...func(*http.Request)) sitetest.Reply {
	r := s.Request(ip, change...)
	caddyhttp.SetVar(r.Context(), "units", fmt.Sprint(n))
	return s.Send(r)
}

// In a strict zone a request takes what it costs as a whole, in each algorithm. What is too large
// leaves Redis as it is; what costs nothing is admitted at the limit.
func TestCostsInAStrictZone(t *testing.T) {
	for _, algorithm := range []string{
		"sliding_window", "sliding_window\nbuckets 10", "fixed_window", "sliding_log", "token_bucket", "gcra",
	} {
		t.Run(algorithm, func(t *testing.T) {
			server := redistest.Start(t)
			s := sitetest.NewSite(t, sitetest.AppWith(server), sitetest.ZoneBlock("costly", "limit 100/1000h\nsync_rate strict\non_redis_loss deny\ncost {http.vars.units}\ncost_default 7\nalgorithm "+algorithm))
			for range 1000 {
				if a := costs(s, "1.2.3.4", 101); a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "" {
					t.Fatalf("what is too large: %d %v", a.Status, a.Header)
				}
			}
			if keys, _ := server.Do("KEYS", "test:*:costly:*").([]any); len(keys) != 0 {
				t.Errorf("redis has %v for what is too large", keys)
			}
			for i, c := range []struct {
				cost any
				want int
			}{{60, 200}, {41, 429}, {33, 200}, {8, 429}, {"six", 200}, {1, 429}, {0, 200}, {0, 200}} {
				if got := costs(s, "1.2.3.4", c.cost).Status; got != c.want {
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
			s := sitetest.NewSite(t, sitetest.AppWith(server), sitetest.ZoneBlock("law", "limit 1000/80000h\nsync_rate strict\ncount_responses 2xx\ncost {http.vars.units}\ncost_default 7\nalgorithm "+algorithm))
			var mu sync.Mutex
			sum, refunded, left := 0, 0, ""
			s.Next = func(w http.ResponseWriter, r *http.Request) error {
				n := 0
				_, _ = fmt.Sscan(sitetest.ValueOf(r, "http.rate_limit.law.cost"), &n)
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
				n, fails := 1+random.IntN(30), sitetest.Header("Kept", "1")
				if random.IntN(2) == 0 {
					fails = sitetest.Header("Fails", "1")
				}
				all.Go(func() { costs(s, "1.2.3.4", n, fails) })
			}
			all.Wait()
			s.Next = func(w http.ResponseWriter, r *http.Request) error {
				left = sitetest.ValueOf(r, "http.rate_limit.law.remaining")
				return nil
			}
			want := fmt.Sprint(1000 - sum)
			redistest.Eventually(t, "redis holds what counted", func() bool {
				costs(s, "1.2.3.4", 0)
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
	const options = "\n}\nlimit 10/30d\nsync_rate strict\nalgorithm fixed_window\non_redis_loss divide\ncost 7"
	s := sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock("share-cost", "match {\npath /cost"+options)+sitetest.ZoneBlock("share-estimate", "match {\npath /estimate"+options+"\nresponse_cost header X-Cost"))
	r.Do("HSET", "test:3:{0}:nodes", "other", sitetest.Lease)
	redistest.Eventually(t, "two nodes", func() bool { return s.Shared().Replicator.Nodes() == 2 })
	r.Kill()
	if a := s.Get("1.2.3.4", sitetest.To("/cost")); a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" || strings.Contains(a.Body, "At most") {
		t.Errorf("a cost of 7 of 10, with a share of 5: %d %v %s", a.Status, a.Header, a.Body)
	}
	cost := ""
	s.Next = func(_ http.ResponseWriter, r *http.Request) error {
		cost = sitetest.ValueOf(r, "http.rate_limit.share-estimate.cost")
		return nil
	}
	if a := s.Get("1.2.3.4", sitetest.To("/estimate")); a.Status != http.StatusOK || cost != "5" {
		t.Errorf("an estimate of 7 of 10, with a share of 5: %d, and %q are reserved", a.Status, cost)
	}
}

// Whoever is denied in a strict zone is denied by Redis as well, and told to wait no shorter than
// it says: beside overrides that come and go, reloads that change limits, and costs of several
// units, though the node remembers denials. What Redis loses it knows a second later.
//
// no clock: a stall only has it ask for less.
func TestADeniedRequestIsDeniedByRedis(t *testing.T) {
	for i, algorithm := range []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra\nburst 4"} {
		t.Run(algorithm, func(t *testing.T) {
			server, random := redistest.Start(t), rand.New(rand.NewPCG(uint64(i), 5))
			app, now := sitetest.AppWith(server), ""
			load := func(old *sitetest.Site, limits string) *sitetest.Site {
				now = limits
				s := sitetest.NewSite(t, app, sitetest.ZoneBlock("law", "limit "+limits+"\nsync_rate strict\nmax_keys 2\ncost {http.vars.units}\ncost_default 1\nalgorithm "+algorithm))
				if old != nil {
					old.End()
				}
				return s
			}
			s, denied, lost := load(nil, "6/1000h 9/2000h"), 0, time.Time{}
			for step := range 250 {
				key := fmt.Sprint("192.0.2.", random.IntN(3)*random.IntN(2))
				switch random.IntN(14) {
				case 0:
					sitetest.Changed(t, http.MethodPost, sitetest.Overrides, fmt.Sprintf(`{"zone":"law","key":%q,"limit":"%d/1000h"}`, key, 3+random.IntN(9)))
				case 1:
					sitetest.Ask(http.MethodDelete, sitetest.Overrides, fmt.Sprintf(`{"zone":"law","key":%q}`, key))
				case 2:
					s = load(s, []string{"6/1000h 9/2000h", "8/1000h 9/2000h", "3/1000h"}[random.IntN(3)])
				case 3:
					if random.IntN(3) == 0 {
						server.Do("FLUSHALL")
						lost = time.Now()
					}
				default:
					cost, knows := 1+random.IntN(3), time.Since(lost) > time.Second
					a := costs(s, key, cost)
					if a.Status == http.StatusOK || a.Header.Get("Retry-After") == "" {
						continue
					}
					denied++
					by := sitetest.AnswerOf[operate.Explained](t, http.MethodPost, "/rate_limit/explain", fmt.Sprintf(`{"zone":"law","key":%q,"cost":%d}`, key, cost))
					wait, _ := strconv.ParseFloat(a.Header.Get("Retry-After"), 64)
					if len(by.Zones) > 0 && !by.Zones[0].FromRedis {
						continue // a stall has opened the circuit: Redis says nothing
					}
					// Explained is by this node's clock, which may be some milliseconds off Redis'.
					if knows && by.Decision.String() != "denied" || by.Wait > wait+0.1 {
						t.Errorf("step %d under %s: what costs %d of %s is denied for %v s, and by Redis %v for %v s: %+v", step, now, cost, key, wait, by.Decision, by.Wait, by.Zones)
					}
				}
			}
			if denied == 0 {
				t.Error("nobody was denied")
			}
			for i := range 3 {
				sitetest.Ask(http.MethodDelete, sitetest.Overrides, fmt.Sprintf(`{"zone":"law","key":"192.0.2.%d"}`, i))
			}
		})
	}
}

// A reload sets how many keys' denials a strict zone remembers, as it sets max_keys.
func TestAReloadSetsHowManyDenialsAreRemembered(t *testing.T) {
	server := redistest.Start(t)
	app := sitetest.AppWith(server)
	load := func(keys string) *sitetest.Site {
		return sitetest.NewSite(t, app, sitetest.ZoneBlock("remembers", "limit 1/1000h\nsync_rate strict\nalgorithm fixed_window\nmax_keys "+keys))
	}
	first := load("1")
	first.Get("192.0.2.1")
	second := load("10")
	first.End()
	redistest.Eventually(t, "no call is made for two clients that are denied", func() bool {
		before := scriptsRun(t, server)
		second.Get("192.0.2.2")
		second.Get("192.0.2.3")
		return scriptsRun(t, server) == before
	})
}

// scriptsRun is how many scripts a Redis has been asked to run.
func scriptsRun(t *testing.T, server *redistest.Server) (n int64) {
	t.Helper()
	_, stats, _ := strings.Cut(fmt.Sprint(server.Do("INFO", "commandstats")), "cmdstat_evalsha:calls=")
	if _, err := fmt.Sscan(strings.Split(stats, ",")[0], &n); err != nil {
		t.Fatalf("INFO commandstats: %q, %v", stats, err)
	}
	return n
}
