package ratelimit

import (
	"net/http"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// durable starts a Redis that knows after a crash what it knew before.
func durable(t *testing.T) *redistest.Server {
	t.Helper()
	return redistest.Start(t, redistest.Config("--appendonly", "yes", "--appendfsync", "always"))
}

// chargedKinds are the algorithms whose strict counts Redis keeps in another form than totals of windows.
var chargedKinds = []string{"sliding_log", "token_bucket", "gcra", "leaky_bucket"}

func strictBlock(zone, algorithm, options string) string {
	if algorithm == "leaky_bucket" {
		options += "\nqueue 4"
	}
	return zoneBlock(zone, "sync_rate 0\nalgorithm "+algorithm+"\n"+options)
}

// decides is admits for requests that don't wait for their turn.
func (s *site) decides(ip string, count, want int, change ...func(*http.Request)) {
	s.t.Helper()
	got := 0
	for range count {
		r := s.request(ip, change...)
		p := newPass(clock())
		if err := p.check(s.handler.zones, r, varsOf(r), nil); err != nil {
			s.t.Fatal(err)
		}
		if p.isRefused() {
			p.giveBack()
		} else {
			got++
		}
		p.free()
	}
	if got != want {
		s.t.Errorf("%d requests from %s: %d admitted, want %d", count, ip, got, want)
	}
}

// What a strict zone's node decided while Redis was lost is held against the limit when Redis decides again: from the first request on.
func TestWhatAStrictZoneDecidesAloneIsCharged(t *testing.T) {
	for _, algorithm := range chargedKinds {
		t.Run(algorithm, func(t *testing.T) {
			r := durable(t)
			s := newSite(t, appWith(r), strictBlock("charged-"+algorithm, algorithm, "limit 5/1h"))
			s.decides("1.2.3.4", 1, 1)
			r.Kill()
			s.decides("1.2.3.4", 8, 4)
			r.Restart()
			redistest.Eventually(t, "redis decides again", func() bool { return !s.app.shared.strict.Down() })
			s.decides("1.2.3.4", 8, 0)
			shows(t, "charged-"+algorithm, "is sent", func(z limitStatus) bool { return z.Unsent == 0 })
			s.decides("1.2.3.4", 8, 0)
			s.end()
		})
	}
}
