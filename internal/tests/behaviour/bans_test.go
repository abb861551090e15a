package behaviour_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

const abnormal = "http-problem-types#abnormal-usage-detected"

// banned reports whether a reply is that to a request during a ban, with so many seconds left.
func banned(a sitetest.Reply, seconds int) bool {
	return a.Status == http.StatusTooManyRequests && a.Header.Get("Retry-After") == fmt.Sprint(seconds) && strings.Contains(a.Body, abnormal)
}

// A request during a ban counts in no zone of the handler, also not where denied ones count, and no
// zone is told that it was there.
func TestABanCountsNowhere(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("nowhere-all", "limit 100/30d\ncount_denied")+sitetest.ZoneBlock("nowhere-shadow", "limit 1/30d\nenforce off")+
		sitetest.ZoneBlock("nowhere-login", "match path /login\nlimit 1/30d\nban 1h"))
	s.Admits("1.2.3.4", 2, 1, sitetest.To("/login"))
	before := operate.CurrentState().Zones
	would := sitetest.DecidedAs(t, "nowhere-shadow", "would_deny")
	s.Admits("1.2.3.4", 5, 0, sitetest.To("/login"))
	for i, z := range operate.CurrentState().Zones {
		if z.Own != before[i].Own {
			t.Errorf("%s has counted %d requests during a ban", z.Zone, z.Own-before[i].Own)
		}
	}
	if n := sitetest.DecidedAs(t, "nowhere-shadow", "would_deny"); n != would {
		t.Errorf("%d requests during a ban are told of in shadow mode", n-would)
	}
	s.Admits("1.2.3.4", 1, 1, sitetest.To("/elsewhere")) // the zone is not for that
}

// In shadow mode a ban is noted: there is a line, it would deny, and it denies nobody, also not
// when the zone is enforced afterwards.
func TestABanInShadowMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const zone = "ban-shadow"
		app := &ratelimit.App{Namespace: t.Name()}
		s := sitetest.NewSite(t, app, sitetest.ZoneBlock(zone, "limit 1/1s\nban 1m after 2/1h\nenforce off"))
		s.Admits("1.2.3.4", 3, 3)
		time.Sleep(30 * time.Second)
		s.Admits("1.2.3.4", 1, 1) // by its limit it would be admitted
		if would := sitetest.DecidedAs(t, zone, "would_deny"); would != 3 {
			t.Errorf("%d requests would have been denied, want the two beyond the limit and the one during the ban", would)
		}
		if n := operate.CurrentState().Zones[0].Banned; n == nil || *n != 0 {
			t.Errorf("the state shows %v banned keys, want 0", n)
		}
		next := sitetest.NewSite(t, app, sitetest.ZoneBlock(zone, "limit 1/1s\nban 1m after 2/1h"))
		s.End()
		next.Admits("1.2.3.4", 1, 1)
		next.End()
	})
}

// The kill switch goes before all, then what operators deny, then a ban, then other overrides. A
// reset ends a ban.
func TestWhatGoesBeforeABan(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("precedence", "limit 1/720h\nban 720h"))
	s.Admits("1.2.3.4", 2, 1)
	key := `{"zone":"precedence","key":"1.2.3.4"`
	switchedOff := func() { // by the kill switch
		t.Helper()
		sitetest.Changed(t, http.MethodPost, sitetest.Enforcement, `{"all":true,"share":0}`)
		s.Admits("1.2.3.4", 1, 1)
		sitetest.Changed(t, http.MethodDelete, sitetest.Enforcement, `{"all":true}`)
		s.Admits("1.2.3.4", 1, 0)
	}
	switchedOff() // the ban alone denies
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, key+`,"limit":"unlimited"}`)
	s.Admits("1.2.3.4", 1, 0)
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, key+`,"limit":"deny"}`)
	if a := s.Get("1.2.3.4"); a.Status != http.StatusForbidden {
		t.Errorf("a banned key that an operator denies gets %d, want 403", a.Status)
	}
	switchedOff() // and what an operator has said of the key
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, key+`}`)
	s.Admits("1.2.3.4", 1, 0)
	if status, text := sitetest.Ask(http.MethodPost, "/rate_limit/reset", key+`}`); status != http.StatusOK {
		t.Fatalf("reset = %d %s", status, text)
	}
	s.Admits("1.2.3.4", 2, 1)
	if a := s.Get("1.2.3.4"); !banned(a, 30*24*3600) {
		t.Errorf("after a reset and another denied request: %d %s, want another ban", a.Status, a.Body)
	}
	if status, text := sitetest.Ask(http.MethodPost, "/rate_limit/reset", `{"zone":"precedence","all":true}`); status != http.StatusOK {
		t.Fatalf("reset = %d %s", status, text)
	}
	s.Admits("1.2.3.4", 1, 1)
}

// Denied requests count towards a ban where a limit is really spent: not beyond max_keys, where
// others count as well, and not by a part of a limit.
func TestWhatIsNoReasonForABan(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("no-reason", "limit 1/30d\nban 1h\nmax_keys 1"))
	s.Admits("1.2.3.4", 1, 1)
	for range 3 {
		s.Get("1.2.3.5")
	}
	if n := sitetest.DecidedAs(t, "no-reason", "banned"); n != 0 {
		t.Errorf("%d requests were denied by a ban of a key beyond max_keys", n)
	}
	s.Admits("1.2.3.4", 1, 0)
	if a := s.Get("1.2.3.4"); !strings.Contains(a.Body, abnormal) {
		t.Errorf("a key with a counter of its own: %s, want it banned", a.Body)
	}
	s.End()
	for others := range 2 {
		zone := fmt.Sprint("no-reason-shared", others)
		r := redistest.Start(t)
		shared := sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock(zone, "limit 4/30d\nalgorithm fixed_window\nban 1h\nsync_rate 100ms\non_redis_loss divide"))
		if others > 0 {
			r.Do("HSET", ratesync.NewKeyspace("test").Nodes(0), "other", fmt.Sprint("1 ", timeOf(r).Add(time.Hour).UnixMilli()))
		}
		redistest.Eventually(t, "all nodes are known", func() bool { return shared.Shared().Replicator.Nodes() == int64(1+others) })
		r.Kill()
		redistest.Eventually(t, "Redis is lost", func() bool { return shared.Lost(zone) })
		shared.Admits("1.2.3.4", 6, 4/(1+others))
		if n := sitetest.DecidedAs(t, zone, "banned"); n != 1-others {
			t.Errorf("beside %d other nodes %d requests were denied by a ban, want one where the limit is not divided", others, n)
		}
		shared.End()
	}
}

// Bans go on over a reload, also one that changes the namespace, and over a restart with persist.
func TestBansOutliveAConfiguration(t *testing.T) {
	h := sitetest.NewHome(t, "storage")
	const options = "limit 1/30d\nban 1h after 2/30d"
	s := h.Boot(sitetest.ZoneBlock("outlives", options))
	s.Admits("1.2.3.4", 3, 1)
	s.Admits("1.2.3.5", 2, 1) // one denied request
	next := h.BootIn("another", sitetest.ZoneBlock("outlives", options))
	s.End()
	banned := func(s *sitetest.Site, ip string) {
		t.Helper()
		if a := s.Get(ip); !strings.Contains(a.Body, abnormal) {
			t.Errorf("%s: %d %s, want it banned", ip, a.Status, a.Body)
		}
	}
	banned(next, "1.2.3.4")
	next.End()
	after := h.BootIn("another", sitetest.ZoneBlock("outlives", options))
	banned(after, "1.2.3.4")
	banned(after, "1.2.3.5") // the second denied request
	after.End()
	without := h.BootIn("another", sitetest.ZoneBlock("outlives", "limit 1/30d"))
	if a := without.Get("1.2.3.4"); strings.Contains(a.Body, abnormal) {
		t.Errorf("without ban: %s", a.Body)
	}
}

// timeOf is what time it is by a Redis.
func timeOf(r *redistest.Server) time.Time {
	c := r.Client()
	defer c.Close()
	return c.Time(context.Background()).Val()
}

// bannedElsewhere has Redis know of a ban of a zone's key, as another node has told it: it began so
// long ago, and lasts twice as long.
func bannedElsewhere(t *testing.T, r *redistest.Server, zone string, id keys.ID, ago time.Duration) {
	t.Helper()
	c := r.Client()
	defer c.Close()
	name := ratesync.NewKeyspace("test").Zone(zone, "ban").Of(id)
	began := timeOf(r).Add(-ago).UnixMicro()
	if err := c.Set(t.Context(), name, fmt.Sprint(began, " ", 2*ago.Microseconds(), " 0"), ago).Err(); err != nil {
		t.Fatal(err)
	}
}

// A ban that began elsewhere is known with the key's next sync, and where Redis decides with the
// next request. Redis keeps it for its rest.
func TestABanFromElsewhere(t *testing.T) {
	for _, options := range []string{"sync_rate 100ms", "sync_rate strict", "sync_rate strict\nalgorithm token_bucket", "sync_rate strict\nalgorithm sliding_log"} {
		t.Run(options, func(t *testing.T) {
			r := redistest.Start(t)
			s := sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock("before", "limit 100000/30d\ncount_denied\n"+options)+sitetest.ZoneBlock("elsewhere", "match path /login\nlimit 100000/30d\nban 60d\n"+options))
			bannedElsewhere(t, r, "elsewhere", keys.IDOf(rawKey(s, "1.2.3.4")), 720*time.Hour)
			admitted := 0
			var a sitetest.Reply
			redistest.Eventually(t, "the ban is known", func() bool {
				if a = s.Get("1.2.3.4", sitetest.To("/login")); a.Status == http.StatusOK {
					admitted++
				}
				return a.Status != http.StatusOK
			})
			s.Admits("1.2.3.4", 3, 0, sitetest.To("/login"))
			const rest = 30 * 24 * 3600
			if left, err := strconv.Atoi(a.Header.Get("Retry-After")); err != nil || !strings.Contains(a.Body, abnormal) || left > rest || left < rest-24*3600 {
				t.Errorf("%d %v %s, want a ban that has 30 of its 60 days left", a.Status, a.Header, a.Body)
			}
			if strings.Contains(options, "strict") && admitted > 0 {
				t.Errorf("%d requests were admitted before", admitted)
			}
			redistest.Eventually(t, "what was counted before Redis said so is refunded", func() bool {
				admitted++
				left := s.Get("1.2.3.4").Header.Get("RateLimit")
				return strings.HasPrefix(left, fmt.Sprintf(`"before";r=%d;`, 100_000-admitted))
			})
		})
	}
}

// Where bans grow, one that begins soon after the last one's end lasts twice as long. One that has
// ended denies nothing.
func TestABanGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("grows", "limit 1/1s\nban 1h growing 60d"))
		for _, hours := range []int{1, 2, 4, 8} {
			s.Admits("1.2.3.4", 1, 1)
			_, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, `{"zone":"grows","key":"1.2.3.4"}`)
			if want := fmt.Sprintf(`"wait":%d,`, hours*3600); !strings.Contains(text, want) {
				t.Errorf("explain says %s, want that a ban of %d hours begins", text, hours)
			}
			if a := s.Get("1.2.3.4"); !banned(a, hours*3600) {
				t.Errorf("%d %v, want a ban of %d hours", a.Status, a.Header, hours)
			}
			time.Sleep(time.Duration(hours) * time.Hour)
		}
		sitetest.Changed(t, http.MethodPost, "/rate_limit/reset", `{"zone":"grows","key":"1.2.3.4"}`)
		time.Sleep(time.Millisecond) // what comes in the instant of a reset may have come before it
		if s.Admits("1.2.3.4", 1, 1); !banned(s.Get("1.2.3.4"), 3600) {
			t.Error("after a reset a ban is not as long as the first")
		}
		s.End()
	})
}

// A reset is remembered for as long as Redis has the ban that it ends: where nobody has asked for
// the key meanwhile, the ban would hold again on all nodes once the reset is over. That is so where
// bans grow, and where they were longer by an earlier configuration.
func TestAResetLastsAsLongAsTheBanThatItEnds(t *testing.T) {
	for _, ban := range []string{"ban 1m growing 300d", "ban 1m"} {
		t.Run(ban, func(t *testing.T) {
			r := redistest.Start(t)
			s := sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock("lifted", "limit 2/30d\nsync_rate strict\n"+ban))
			key := rawKey(s, "1.2.3.4")
			bannedElsewhere(t, r, "lifted", keys.IDOf(key), 4800*time.Hour)
			if a := s.Get("1.2.3.4"); !strings.Contains(a.Body, abnormal) {
				t.Fatalf("%d %s, want it banned", a.Status, a.Body)
			}
			sitetest.AnswerOf[operate.ResetDone](t, http.MethodPost, "/rate_limit/reset", `{"zone":"lifted","key":"1.2.3.4"}`)
			all, err := r.Client().HGetAll(t.Context(), ratesync.NewKeyspace("test").Control()).Result()
			if err != nil {
				t.Fatal(err)
			}
			lasts := time.Duration(0)
			for name, value := range all {
				if words := strings.Fields(value); strings.HasPrefix(name, "reset:") && len(words) > 4 {
					ms, _ := strconv.ParseInt(words[4], 10, 64)
					lasts = time.Duration(ms) * time.Millisecond
				}
			}
			if rest := restOfBan(r, "lifted", key); lasts == 0 || rest > lasts {
				t.Errorf("the reset lasts %v, and Redis has the ban for %v", lasts, rest)
			}
		})
	}
}

// A ban that begins while Redis is away holds at once, and is shared when it is back. The node
// writes it back when Redis has forgotten all.
func TestABanWhileRedisIsAway(t *testing.T) {
	for _, options := range []string{"sync_rate 100ms", "sync_rate strict\nalgorithm token_bucket"} {
		t.Run(options, func(t *testing.T) {
			r := redistest.Start(t)
			app := sitetest.AppWith(r)
			app.StrictTimeout = 0
			s := sitetest.NewSite(t, app, sitetest.ZoneBlock("away", "limit 1/30d\nban 720h\n"+options))
			s.Admits("1.2.3.5", 1, 1)
			r.Kill()
			redistest.Eventually(t, "Redis is lost", func() bool { return !s.Shared().Replicator.Status().Up })
			s.Admits("1.2.3.4", 2, 1)
			if a := s.Get("1.2.3.4"); !strings.Contains(a.Body, abnormal) {
				t.Errorf("%d %s, want it banned though Redis is away", a.Status, a.Body)
			}
			r.Restart()
			shared := func() bool { return restOfBan(r, "away", rawKey(s, "1.2.3.4")) > 696*time.Hour }
			redistest.Eventually(t, "the ban is shared", shared)
			r.Do("FLUSHALL")
			redistest.Eventually(t, "the ban is written back", shared)
		})
	}
}

// restOfBan is how long a Redis has the ban of a zone's key still, 0 or less for none.
func restOfBan(r *redistest.Server, zone string, key []byte) time.Duration {
	c := r.Client()
	defer c.Close()
	return c.PTTL(context.Background(), ratesync.NewKeyspace("test").Zone(zone, "ban").Of(keys.IDOf(key))).Val()
}

// rawKey is the key of requests from an address.
func rawKey(s *sitetest.Site, ip string) []byte {
	k, _ := s.Handler.Zones()[0].KeyOf(s.Request(ip))
	return k.Raw
}

// The metrics and the state tell how many keys are banned, explain and top until when, and for
// which key.
func TestWhereBansAreShown(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("shown", "limit 1/30d 5/60d\nban 30d")+sitetest.ZoneBlock("shown-without", "limit 9/30d"))
	s.Admits("1.2.3.4", 2, 1)
	gauges := map[string]float64{}
	sitetest.Scrape(t, func(name string, labels map[string]string, value float64) {
		if name == "caddy_rate_limit_banned_keys" {
			gauges[labels["zone"]] = value
		}
	})
	if n, ok := gauges["shown"]; len(gauges) != 1 || !ok || n != 1 {
		t.Errorf("the gauges are %v, want 1 for the zone that bans", gauges)
	}
	for _, z := range operate.CurrentState().Zones {
		if has := z.Banned != nil; has != (z.Zone == "shown") || has && *z.Banned != 1 {
			t.Errorf("the state of %s shows %v banned keys", z.Zone, z.Banned)
		}
	}
	_, text := sitetest.Ask(http.MethodPost, "/rate_limit/explain", `{"zone":"shown","key":"1.2.3.4"}`)
	var said operate.Explained
	if err := json.Unmarshal([]byte(text), &said); err != nil || said.Decision != answer.Banned || said.Zones[0].Decision != answer.Banned || said.Zones[0].BannedUntil == nil {
		t.Fatalf("explain says %s, want the key banned", text)
	}
	if left := time.Until(*said.Zones[0].BannedUntil); left > 720*time.Hour || left < 696*time.Hour || said.Wait > 720*3600 || said.Wait < 696*3600 {
		t.Errorf("explain says %s, want 30 days from the beginning", text)
	}
	_, text = sitetest.Ask(http.MethodGet, "/rate_limit/top?zone=shown", "")
	var top []operate.Top
	if err := json.Unmarshal([]byte(text), &top); err != nil || len(top) != 2 || len(top[0].Keys) != 1 || top[0].Keys[0].BannedUntil == nil {
		t.Fatalf("top says %s, want one key that is banned", text)
	}
	_, text = sitetest.Ask(http.MethodPost, "/rate_limit/explain", fmt.Sprintf(`{"zone":"shown","id":%q}`, top[0].Keys[0].ID))
	if !strings.Contains(text, `"banned_until"`) {
		t.Errorf("explain of the id says %s, want it banned", text)
	}
}

// Nothing of a zone with ban is left when no configuration has it any more.
func TestBansAreReleased(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("released", "limit 1/30d\nban 1h after 2/30d"))
	s.End()
	limits.EachBans(func(b *limits.Bans) {
		if b.Zone() == "released" {
			t.Error("its bans are left")
		}
	})
}

// The page's Caddyfile, over every protocol.
func TestBanOfThePage(t *testing.T) {
	_, site := sitetest.SiteInPage(t, "docs/ban.md", "example.com")
	s := sitetest.StartCaddy(t, "", strings.ReplaceAll(site, "reverse_proxy localhost:9000", "respond in"))
	login := func(r *http.Request) { r.Method, r.URL.Path = http.MethodPost, "/login" }
	s.Answers("HTTP/1.1", 5, http.StatusOK, 5, login)
	s.Answers("HTTP/1.1", 3, http.StatusTooManyRequests, 3, login)
	for _, protocol := range protocols {
		a, err := s.Get(t.Context(), protocol, login)
		if err != nil || a.Status != http.StatusTooManyRequests || !strings.Contains(a.Body, abnormal) || len(a.Header.Get("Retry-After")) != 3 {
			t.Errorf("%s: %d %v %s, %v, want a ban of 15 minutes", protocol, a.Status, a.Header, a.Body, err)
		}
	}
	s.Answers("HTTP/1.1", 1, http.StatusOK, 1)
	if n := loggedMessages(s, "rate limit banned"); n != 1 {
		t.Errorf("%d lines of bans, want 1", n)
	}
}

// forged is what a client may send to have another one dropped.
const forged = `","logger":"http.handlers.rate_limit","msg":"rate limit banned","zone":"x","wait":1,"limit":1,"remote_ip":"","client_ip":"203.0.113.77"`
