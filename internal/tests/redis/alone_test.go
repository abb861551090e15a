package redis_test

import (
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// durable starts a Redis that knows after a crash what it knew before.
func durable(t *testing.T) *redistest.Server {
	t.Helper()
	return redistest.Start(t, redistest.Config("--appendonly", "yes", "--appendfsync", "always"))
}

// sayingKinds are algorithms whose strict counts are not whole windows.
var sayingKinds = []string{"sliding_log", "token_bucket", "gcra", "leaky_bucket"}

func strictBlock(zone, algorithm, options string) string {
	if algorithm == "leaky_bucket" {
		options += "\nqueue 4"
	}
	return sitetest.ZoneBlock(zone, "sync_rate 0\nalgorithm "+algorithm+"\n"+options)
}

// A reload changes how a zone shares its counts while Redis is lost, and another one changes it
// back: what the node decided by itself counts all the same.
func TestWhatAStrictZoneDecidesAloneOutlivesReloads(t *testing.T) {
	for _, algorithm := range sayingKinds {
		for _, between := range []string{"100ms", "local"} {
			t.Run(algorithm+" "+between, func(t *testing.T) {
				r := durable(t)
				zone := "reloaded-" + algorithm + "-" + between
				block := strings.Replace(strictBlock(zone, algorithm, "limit 9/30d"), "queue 4", "queue 8", 1)
				s := sitetest.NewSite(t, sitetest.AppWith(r), block)
				s.Decides("1.2.3.4", 2, 2)
				r.Kill()
				s.Decides("1.2.3.4", 3, 3)
				s2 := sitetest.NewSite(t, sitetest.AppWith(r), strings.Replace(block, "sync_rate 0", "sync_rate "+between, 1))
				s.End()
				s2.Decides("1.2.3.4", 2, 2)
				s3 := sitetest.NewSite(t, sitetest.AppWith(r), block)
				s2.End()
				s3.Decides("1.2.3.4", 1, 1)
				r.Restart()
				redistest.Eventually(t, "redis decides again", func() bool { return s3.Shared().Strict.Status().Open == 0 })
				s3.Decides("1.2.3.4", 5, 1)
				sitetest.Shows(t, zone, "is sent", func(z operate.LimitState) bool { return z.Unsent == 0 })
				s3.End()
			})
		}
	}
}

// What Redis forgets is said again: the node knows what it has spent, whoever decided.
func TestAStrictZoneKeepsItsOwnDecisionsWhenRedisForgets(t *testing.T) {
	for _, algorithm := range sayingKinds {
		t.Run(algorithm, func(t *testing.T) {
			r := redistest.Start(t)
			s := sitetest.NewSite(t, sitetest.AppWith(r), strictBlock("forgot-"+algorithm, algorithm, "limit 5/30d"))
			s.Decides("1.2.3.4", 2, 2)
			r.Kill()
			s.Decides("1.2.3.4", 2, 2)
			r.Restart() // empty
			redistest.Eventually(t, "redis decides again", func() bool { return s.Shared().Strict.Status().Open == 0 })
			s.Decides("1.2.3.4", 1, 1)
			r.Do("FLUSHALL")
			s.Decides("1.2.3.4", 8, 0)
			s.End()
		})
	}
}
