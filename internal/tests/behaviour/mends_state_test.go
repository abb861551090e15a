package behaviour_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
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

// A Caddyfile without zones is an error, JSON is a warning.
func TestMendOfNoZone(t *testing.T) {
	t.Cleanup(func() { stop(t) })
	const zones = `"rate_limits":{"z":{"limits":[{"max_events":2,"window":2592000000000000}],"source":"Caddyfile:22"}}`
	s := serve(t, "", zone2(""), zones, `"rate_limits":{}`)
	s.admits(anybody, 6, 6)
	s.warns(warning.NoZone)
	stop(t)
	s = serve(t, "", zone2(""))
	s.admits(anybody, 6, 2)
	s.warns()
}

// Two equal limits in a site have each other's counts where one is moved, and in zones their own.
func TestMendOfUnnamedLimits(t *testing.T) {
	t.Cleanup(func() { stop(t) })
	for _, c := range []struct {
		a, b  string
		moved int
		codes []string
	}{
		{"rate_limit 2/30d\n", "rate_limit 2/30d\n", 2, []string{warning.SameLimit}},
		{zone2(""), strings.Replace(zone2(""), "zone z", "zone y", 1), 0, nil},
	} {
		a, b := "handle /a/* {\n"+c.a+"}\n", "handle /b/* {\n"+c.b+"}\n"
		s := serve(t, "", a+b)
		s.admits("1.2.3.@ /a/x", 3, 2)
		s.warns(c.codes...)
		serve(t, "", b+a).admits("1.2.3.@ /a/x", 3, c.moved)
		stop(t)
	}
}

// A page's pictures are admitted at once where only the login is matched, and guesses are not.
func TestMendOfAPageThatReserves(t *testing.T) {
	t.Cleanup(func() { stop(t) })
	for match, pictures := range map[string]int{"": 2, "match path /login*\n": 6} {
		arrived, release := make(chan int), make(chan struct{})
		backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/login" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			arrived <- http.StatusOK
			<-release
		}))
		s := serve(t, "", zone2(match+"count_responses 401")+"reverse_proxy "+backend.Listener.Addr().String())
		ended := make(chan int, 6)
		for i := range 6 {
			go func() {
				status, _ := s.send("1.2.3.@ /#.png", 1, i)
				ended <- status
			}()
		}
		got := 0
		for range 6 {
			select {
			case <-arrived:
				got++
			case <-ended:
			}
		}
		close(release)
		for range got {
			<-ended
		}
		if got != pictures {
			t.Errorf("%q: %d pictures at once, want %d", match, got, pictures)
		}
		guesses := 0
		for range 6 {
			if status, _ := s.send("1.2.3.@ /login", 1, 0); status == http.StatusUnauthorized {
				guesses++
			}
		}
		if guesses != 2 {
			t.Errorf("%q: %d guesses, want 2", match, guesses)
		}
		s.warns(map[string][]string{"": {warning.AllReserve}}[match]...)
		backend.Close()
		stop(t)
	}
}

// A ban ends with what the advice says to write, while what the limit itself denies is as it was.
//
// bubble: a ban is waited for.
func TestMendsOfBans(t *testing.T) {
	for _, c := range []struct {
		code, who, options, old, new string
	}{
		{warning.LongBan, "1.2.3.4", "limit 2/1m\nban 24h", "ban 24h", "ban 15m"},
		{warning.BanOfAll, "1.2.3.5", "key all\nlimit 2/1m\nban 24h", "ban 24h", ""},
	} {
		for _, mended := range []bool{false, true} {
			options := c.options
			if mended {
				options = strings.Replace(options, c.old, c.new, 1)
			}
			block := sitetest.ZoneBlock("z", options)
			if got := warnedOf(t, "", "", "rate_limit {\n"+block+"}"); (len(got) == 0) != mended || !mended && !strings.HasPrefix(got[0], c.code) {
				t.Errorf("%q: warned of %q", options, got)
			}
			synctest.Test(t, func(t *testing.T) {
				s := sitetest.NewSite(t, &ratelimit.App{}, block+sitetest.ZoneBlock("other", "match path /other\nlimit 1/30d"))
				defer s.End()
				s.Admits("9.9.9.9", 2, 1, sitetest.To("/other"))
				time.Sleep(time.Hour)
				s.Admits("1.2.3.4", 3, 2)
				time.Sleep(time.Hour)
				s.Admits(c.who, 1, map[bool]int{true: 1}[mended])
				s.Admits("9.9.9.9", 1, 0, sitetest.To("/other"))
			})
		}
	}
}

// Redis has what is counted once its variable is set, and off is said by the one that is not.
func TestMendOfAnEmptyRedis(t *testing.T) {
	r := redistest.Start(t)
	t.Cleanup(func() { stop(t) })
	const options = "rate_limit {\nnamespace test\nredis {$TIDE_TEST_REDIS}\n}"
	run := func(options string, codes ...string) {
		s := serve(t, options, zone2(""))
		s.admits(anybody, 3, 2)
		s.warns(codes...)
	}
	run(options, warning.NoRedis)
	stop(t)
	run(strings.Replace(options, "REDIS", "REDIS:off", 1))
	stop(t)
	if n := sitetest.SumIn(t, r, "z"); n != 0 {
		t.Errorf("redis has %d requests without its address", n)
	}
	t.Setenv("TIDE_TEST_REDIS", r.URL)
	run(options)
	redistest.Eventually(t, "redis has what is counted", func() bool { // z has one of other
		return sitetest.SumIn(t, r, "z") == 3 && sitetest.SumIn(t, r, "other") == 1
	})
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

// Counts outlive the process once persist can be written, and where it has another name.
func TestMendsOfPersist(t *testing.T) {
	t.Cleanup(func() { stop(t) })
	dir := t.TempDir()
	foreign := filepath.Join(dir, "notes")
	if err := os.WriteFile(foreign, []byte("not counters"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code, persist, name string
		mend                func() error
	}{
		{warning.NotSaved, filepath.Join(dir, "no", "counters"), "counters", func() error { return os.Mkdir(filepath.Join(dir, "no"), 0o700) }},
		{warning.NotRestored, foreign, "counters", func() error { return nil }},
	} {
		run := func(persist string, want int, codes ...string) {
			s := serve(t, "rate_limit {\npersist "+persist+"\n}", zone2(""))
			s.admits(anybody, 3, want)
			stop(t)
			s.warns(codes...)
		}
		for range 2 {
			run(c.persist, 2, c.code)
		}
		if err := c.mend(); err != nil {
			t.Fatal(err)
		}
		mended := filepath.Join(filepath.Dir(c.persist), c.name)
		run(mended, 2)
		run(mended, 0)
	}
}

// Overrides of a zone that was renamed hold for its new name once they are set there, and are told
// of no longer once they are removed. Those of another zone stay.
//
// bubble: they are looked for after a second.
func TestMendOfUnusedOverrides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := &ratelimit.App{Namespace: "renamed"}
		other := sitetest.ZoneBlock("other", "match path /other\nlimit 1/30d")
		before := new(sitetest.Site)
		before.Ended = true
		run := func(zone string, want, codes int) {
			t.Helper()
			s := sitetest.NewSite(t, app, sitetest.ZoneBlock(zone, "limit 2/30d")+other)
			before.End()
			before = s
			logs := s.Watched()
			time.Sleep(5 * time.Second)
			if n := sitetest.Coded(logs, warning.UnusedOverrides); n != codes || logs.Len() != n {
				t.Errorf("zone %s: warned of %v, want %d", zone, logs.All(), codes)
			}
			s.Admits("1.2.3.4", 6, want)
			s.Admits("1.2.3.4", 1, 0, sitetest.To("/other"))
		}
		defer func() { before.End() }()
		run("old", 2, 0)
		for _, zone := range []string{"old", "other"} {
			sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"`+zone+`","key":"1.2.3.4","limit":"5"}`)
		}
		run("new", 2, 1)
		sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"new","key":"1.2.3.4","limit":"5"}`)
		if status, text := sitetest.Ask(http.MethodPost, operate.BulkPath, `{"zone":"old","overrides":null,"replace":true,"force":true}`); status != http.StatusOK {
			t.Errorf("removing the others = %d %s", status, text)
		}
		run("new", 3, 0)
		for _, zone := range []string{"new", "other"} { // the process keeps them
			sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"`+zone+`","key":"1.2.3.4"}`)
		}
	})
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
