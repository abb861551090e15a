package redis_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

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
