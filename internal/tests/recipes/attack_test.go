package recipes_test

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// documented is a site with the configuration of a page that holds a text.
func documented(t *testing.T, page, holds string) *sitetest.Site {
	t.Helper()
	for _, b := range sitetest.BlocksOf(t, page, "caddyfile") {
		if !strings.Contains(b.Text, holds) {
			continue
		}
		return sitetest.AdaptedSite(t, b.Text)
	}
	t.Fatalf("%s has no caddyfile with %s", page, holds)
	return nil
}

// rotate sends requests from addresses that differ in the bits from a prefix of a network on, and
// counts the admitted.
func rotate(s *sitetest.Site, network string, step, count int) (admitted int) {
	base := netip.MustParseAddr(network).As16()
	for i := range count {
		raw := base
		high := binary.BigEndian.Uint64(raw[:8])
		low := uint64(i)
		if step <= 64 {
			high, low = high+uint64(i)<<(64-step), 1
		}
		binary.BigEndian.PutUint64(raw[:8], high)
		binary.BigEndian.PutUint64(raw[8:], low)
		if s.Get(netip.AddrFrom16(raw).String()).Status == http.StatusOK {
			admitted++
		}
	}
	return admitted
}

// The recipe of docs/security.md holds an attacker with a /48 however he rotates his addresses.
func TestRotationOfIPv6Addresses(t *testing.T) {
	for _, c := range []struct {
		name    string
		network string
		step    int // the first bit that changes is the last one of this prefix
		count   int
		want    int
	}{
		{"in a /64", "2001:db8:1::", 128, 3000, 100},
		{"the /64s of a /56", "2001:db8:2::", 64, 256, 256},
		{"the /56s of a /48", "2001:db8:3::", 56, 256, 256},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := documented(t, "docs/security.md", "zone customer {")
			defer s.End()
			if got := rotate(s, c.network, c.step, c.count); got != c.want {
				t.Errorf("%s: %d requests, %d admitted, want %d", c.name, c.count, got, c.want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := documented(t, "docs/security.md", "zone customer {")
		defer s.End()
		site, customer := 0, 0
		for range 20 {
			site += rotate(s, "2001:db8:4:100::", 63, 128) // each second /64 of a /56
		}
		if site != 400 {
			t.Errorf("a /56 whose /64s rotate got %d of 2560 requests, want 400", site)
		}
		for round := range 20 {
			customer += rotate(s, fmt.Sprintf("2001:db8:5:%x::", round), 56, 256)
		}
		if customer != 1600 {
			t.Errorf("a /48 whose /64s and /56s rotate got %d of 5120 requests, want 1600", customer)
		}
		for _, neighbour := range []string{"2001:db8:6::1", "2001:db8:4:200::1", "192.0.2.1"} {
			s.Admits(neighbour, 101, 100)
		}
		s.Admits("2001:db8:5:ffff::1", 1, 0)
	})
}

// An attacker who rotates a key of his choice is held by the zone by address that docs/security.md
// sets beside it.
func TestRotationOfAHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := documented(t, "docs/security.md", "zone tenant {")
		defer s.End()
		admitted := 0
		for i := range 3000 {
			if s.Get("1.2.3.4", sitetest.Header("X-Api-Key", fmt.Sprint(i))).Status == http.StatusOK {
				admitted++
			}
		}
		if admitted != 1200 {
			t.Errorf("3000 keys from one address: %d admitted, want 1200", admitted)
		}
		s.Admits("1.2.3.5", 1, 1)
	})
}
