package sitetest

import (
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit"
)

// AdaptedSite is a site with the first handler of a Caddyfile.
func AdaptedSite(t *testing.T, caddyfile string) *Site {
	t.Helper()
	config, err := Adapt(caddyfile)
	if err != nil {
		t.Fatal(err)
	}
	s, err := TryHandler(t, new(caddy.Config), &ratelimit.App{}, HandlersIn(t, config)[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.End)
	return s
}
