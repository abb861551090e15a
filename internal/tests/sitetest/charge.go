package sitetest

import (
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/limits"
)

// Decides is admits for requests that don't queue.
func (s *Site) Decides(ip string, count, want int, change ...func(*http.Request)) {
	s.T.Helper()
	got := 0
	for range count {
		r := s.Request(ip, change...)
		e, err := limits.Evaluate(s.Handler.Zones(), r, clock.Now())
		if err != nil {
			s.T.Fatal(err)
		}
		if !e.Denied {
			got++
		}
		e.Free()
	}
	if got != want {
		s.T.Errorf("%d requests from %s: %d admitted, want %d", count, ip, got, want)
	}
}
