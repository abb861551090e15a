package behaviour_test

import (
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// admits sends a client's requests and wants so many of them admitted, and the second zone as it
// was.
func (s *served) admits(who string, count, want int) {
	s.t.Helper()
	got := 0
	for i := range count {
		if status, _ := s.send(who, 1, i); admitted(status, who) {
			got++
		}
	}
	if got != want {
		s.t.Errorf("%q: %d of %d requests were admitted, want %d", who, got, count, want)
	}
	if !s.deniesElsewhere() {
		s.t.Error("the zone other doesn't deny")
	}
}

// warns wants exactly these codes.
func (s *served) warns(want ...string) {
	s.t.Helper()
	if got := s.warned(); !slices.Equal(got, want) {
		s.t.Errorf("warned of %q, want %q", got, want)
	}
}

// stop ends Caddy, with what it has counted.
func stop(t *testing.T) {
	t.Helper()
	if err := caddy.Stop(); err != nil {
		t.Error(err)
	}
}

// A node reads another region once `here` is that of its Redis, or once the name there is deleted
// that a wrong `here` has left.
func TestMendsOfAWrongRegion(t *testing.T) {
	t.Cleanup(func() { stop(t) })
	for _, deleted := range []bool{false, true} {
		eu, us := redistest.Start(t), redistest.Start(t)
		right := "rate_limit {\nnamespace test\nregions {\nhere eu\nregion eu " + eu.URL + "\nregion us " + us.URL + "\n}\n}"
		swapped := strings.NewReplacer("here eu", "here us", "region eu", "region us", "region us", "region eu").Replace(right)
		here, there := eu.Client(), us.Client()
		defer here.Close()
		defer there.Close()
		names := func(options string, c *redis.Client) {
			serve(t, options, zone2(""))
			redistest.Eventually(t, "redis has its region's name", func() bool { return len(c.Keys(t.Context(), "*:region").Val()) > 0 })
			stop(t)
		}
		first, second := right, swapped
		if deleted {
			first, second = swapped, right
		}
		names(strings.Replace(right, "here eu", "here us", 1), there)
		names(first, here)
		s := serve(t, second, zone2(""))
		redistest.Eventually(t, "it is told", func() bool { return slices.Contains(s.warned(), warning.WrongRegion) })
		here.HDel(t.Context(), "test:3:{0}:relay", "answered:us")
		if deleted {
			key := regexp.MustCompile("delete the key ([^ ]+) there").FindStringSubmatch(s.logged())[1]
			if n := here.Del(t.Context(), key).Val(); n != 1 {
				t.Errorf("deleting %s = %d, want 1", key, n)
			}
		} else {
			stop(t)
			s = serve(t, right, zone2(""))
		}
		s.admits(anybody, 3, 2)
		redistest.Eventually(t, "it reads the other region", func() bool { return here.HExists(t.Context(), "test:3:{0}:relay", "answered:us").Val() })
		if got := s.warned(); !deleted && slices.Contains(got, warning.WrongRegion) {
			t.Errorf("warned of %q", got)
		}
		stop(t)
	}
}

// A namespace of its own leaves another program's keys alone, and counts.
func TestMendOfForeignKeys(t *testing.T) {
	r := redistest.Start(t)
	t.Cleanup(func() { stop(t) })
	site := zone2("")
	options := "rate_limit {\nnamespace theirs\nsync_rate 20ms\nredis " + r.URL + "\n}"
	c := r.Client()
	defer c.Close()
	keysOf := func(pattern string) []string { return c.Keys(t.Context(), pattern).Val() }
	serve(t, options, site).admits(anybody, 3, 2)
	redistest.Eventually(t, "it is counted", func() bool { return len(keysOf("theirs:*:z:*")) > 0 })
	stop(t)
	foreign := keysOf("theirs:*:z:*")
	for _, key := range foreign {
		c.Set(t.Context(), key, "foreign", 0)
	}
	s := serve(t, options, site)
	s.send(anybody, 1, 1)
	redistest.Eventually(t, "it is told", func() bool { return slices.Equal(s.warned(), []string{warning.ForeignKey}) })
	stop(t)
	s = serve(t, strings.Replace(options, "theirs", "test", 1), site)
	s.admits(anybody, 3, 2)
	redistest.Eventually(t, "both zones count", func() bool { // z has one of other
		return sitetest.SumIn(t, r, "z") == 3 && sitetest.SumIn(t, r, "other") == 1
	})
	s.warns()
	for _, key := range foreign {
		if c.Get(t.Context(), key).Val() != "foreign" {
			t.Errorf("%s is not as it was", key)
		}
	}
}
