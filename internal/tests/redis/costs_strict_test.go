package redis_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

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
		"sliding_window", "sliding_window\nsub_windows 10", "fixed_window", "sliding_log", "token_bucket", "gcra",
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
		before := server.Calls("evalsha")
		second.Get("192.0.2.2")
		second.Get("192.0.2.3")
		return server.Calls("evalsha") == before
	})
}
