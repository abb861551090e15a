package ratelimit

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"
	"go.uber.org/goleak"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// appWith has the timeouts that a busy machine needs.
func appWith(r *redistest.Server) *App {
	long := caddy.Duration(30 * time.Second)
	return &App{Redis: &redisconn.Options{Address: []string{r.Addr}, Timeout: long}, Namespace: "test", StrictTimeout: long}
}

// shows waits until the state of a zone in the admin endpoint is as wanted.
func shows(t *testing.T, zone, what string, want func(operate.LimitState) bool) {
	t.Helper()
	redistest.Eventually(t, zone+" "+what, func() bool {
		for _, z := range operate.CurrentState().Zones {
			if z.Zone == zone && want(z) {
				return true
			}
		}
		return false
	})
}

func (s *site) lost(zone string) bool {
	for _, z := range s.handler.zones {
		if z.Name == zone {
			return firstOf(z).Source.HasLost([]byte("any key, as there is no Cluster"))
		}
	}
	return false
}

func TestRulesWhileRedisIsLost(t *testing.T) {
	r := redistest.Start(t)
	block := "sync_rate 100ms\n"
	for _, rule := range []string{"local", "divide", "allow", "deny"} {
		block += zoneBlock("loss-"+rule, "match {\npath /"+rule+"\n}\nlimit 10/1h\nalgorithm fixed_window\non_redis_loss "+rule)
	}
	s := newSite(t, appWith(r), block)
	for _, rule := range []string{"local", "divide", "allow", "deny"} {
		redistest.Eventually(t, "the sync begins", func() bool { return !s.lost("loss-" + rule) })
		s.admits("1.2.3.4", 4, 4, to("/"+rule))
		shows(t, "loss-"+rule, "is sent", func(z operate.LimitState) bool { return z.Own == 4 && z.Unsent == 0 })
	}
	// Another node shows up in the list.
	r.Do("HSET", "test:2:{0}:nodes", "other", fmt.Sprint("1 ", time.Now().Add(time.Hour).UnixMilli()))
	redistest.Eventually(t, "two nodes", func() bool { return s.app.shared.Replicator.Nodes() == 2 })
	r.Kill()
	for _, rule := range []string{"local", "divide", "allow", "deny"} {
		redistest.Eventually(t, "the loss is noticed", func() bool { return s.lost("loss-" + rule) })
	}
	s.admits("1.2.3.4", 10, 6, to("/local"))
	s.admits("1.2.3.4", 10, 1, to("/divide"))
	s.admits("1.2.3.4", 10, 10, to("/allow"))
	if a := s.get("1.2.3.4", to("/deny")); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
		t.Errorf("deny: %d %v, want 503 with Retry-After", a.status, a.header)
	}
	r.Restart()
	for _, rule := range []string{"local", "divide", "allow", "deny"} {
		redistest.Eventually(t, "redis is back", func() bool { return !s.lost("loss-" + rule) })
	}
	s.admits("1.2.3.4", 10, 6, to("/deny"))
}

func TestStrictZoneGoesOnWithoutRedis(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "token_bucket", "gcra", "sliding_log"} {
		t.Run(algorithm, func(t *testing.T) {
			r := redistest.Start(t)
			name := "strict-" + algorithm
			s := newSite(t, appWith(r), zoneBlock(name, "sync_rate 0\nlimit 10/1h\nalgorithm "+algorithm))
			s.admits("1.2.3.4", 6, 6)
			r.Kill()
			s.admits("1.2.3.4", 10, 4)
			r.Restart()
			redistest.Eventually(t, "redis decides again", func() bool { return s.app.shared.Strict.Status().Open == 0 })
			switch algorithm {
			case "fixed_window", "sliding_window":
				// what was admitted meanwhile is sent; what Redis lost in the crash is not this
				// node's
				shows(t, name, "is sent", func(z operate.LimitState) bool { return z.Own == 4 && z.Unsent == 0 })
				s.admits("1.2.3.4", 12, 6)
			}
			s.end()
		})
	}
}

func TestStrictDenialIsRolledBackInLocalZones(t *testing.T) {
	r := redistest.Start(t)
	s := newSite(t, appWith(r),
		zoneBlock("strict-narrow", "sync_rate strict\nkey {http.request.header.K}\nlimit 1/1h")+
			zoneBlock("local-wide", "sync_rate local\nlimit 5/1h")+
			zoneBlock("strict-wide", "sync_rate 0\nlimit 5/1h\nalgorithm token_bucket"))
	s.admits("1.2.3.4", 20, 1, header("K", "a"))
	for i := range 4 {
		s.admits("1.2.3.4", 1, 1, header("K", strconv.Itoa(i)))
	}
	s.admits("1.2.3.4", 1, 0, header("K", "last"))
}

func TestWindowsSurviveAChangeOfSyncRate(t *testing.T) {
	r := redistest.Start(t)
	block := func(rate string) string {
		return zoneBlock("rates", "sync_rate "+rate+"\nlimit 20/1h\nalgorithm fixed_window")
	}
	s := newSite(t, appWith(r), block("0"))
	s.admits("1.2.3.4", 5, 5)
	for _, rate := range []string{"100ms", "0", "local", "50ms", "0"} {
		s2 := newSite(t, appWith(r), block(rate))
		s.end()
		s = s2
		if rate != "local" {
			redistest.Eventually(t, "the sync begins", func() bool { return !s.lost("rates") })
		}
		if rate == "0" {
			shows(t, "rates", "is sent", func(z operate.LimitState) bool { return z.Unsent == 0 })
		}
		s.admits("1.2.3.4", 2, 2)
	}
	s.admits("1.2.3.4", 20, 5)
}

func TestCountsAreSentWhenTheLastConfigurationEnds(t *testing.T) {
	r := redistest.Start(t)
	block := zoneBlock("flushed", "sync_rate 1h\nlimit 10/1h\nalgorithm fixed_window")
	s := newSite(t, appWith(r), block)
	s.admits("1.2.3.4", 1, 1)
	shows(t, "flushed", "is sent", func(z operate.LimitState) bool { return z.Unsent == 0 })
	s.admits("1.2.3.4", 6, 6)
	s.end()
	s = newSite(t, appWith(r), block) // as a new process: it knows nothing but what Redis has
	s.admits("1.2.3.4", 1, 1)
	shows(t, "flushed", "is known", func(z operate.LimitState) bool { return z.Remote == 7 })
	s.admits("1.2.3.4", 5, 2)
}

// storage is a Caddy storage that has a Redis client to lend.
type lender struct {
	certmagic.FileStorage
	client any
}

func (l *lender) GetClient() any { return l.client }
func (*lender) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.storage.lender", New: func() caddy.Module { return &lent }}
}
func (l *lender) CertMagicStorage() (certmagic.Storage, error) { return l, nil }
func (*lender) Lock(context.Context, string) error             { return nil }
func (*lender) Unlock(context.Context, string) error           { return nil }

var lent lender

func TestBorrowedClient(t *testing.T) {
	r := redistest.Start(t)
	lent.client = r.Client()
	caddy.RegisterModule(&lent)
	block := zoneBlock("borrowed", "sync_rate 50ms\nlimit 10/1h\nalgorithm fixed_window")
	s := newSiteWith(t, &caddy.Config{StorageRaw: []byte(`{"module":"lender"}`)}, &App{Redis: &redisconn.Options{Storage: true}}, block)
	s.admits("1.2.3.4", 4, 4)
	shows(t, "borrowed", "is sent", func(z operate.LimitState) bool { return z.Own == 4 && z.Unsent == 0 })
	s2 := newSiteWith(t, &caddy.Config{StorageRaw: []byte(`{"module":"lender"}`)}, &App{Redis: &redisconn.Options{Storage: true}}, block)
	s.end()
	s2.admits("1.2.3.4", 3, 3)
	s2.end()
	if err := r.Client().Ping(context.Background()).Err(); err != nil {
		t.Errorf("the borrowed client was closed: %v", err)
	}
	s = newSiteWith(t, &caddy.Config{StorageRaw: []byte(`{"module":"lender"}`)}, &App{Redis: &redisconn.Options{Storage: true}}, block)
	s.admits("1.2.3.4", 1, 1)
	shows(t, "borrowed", "is known", func(z operate.LimitState) bool { return z.Remote == 7 })
}

func TestStrictFailuresAreReported(t *testing.T) {
	r := redistest.Start(t, redistest.User("poor", "on >secret ~test:* +@all -zadd"))
	app := appWith(r)
	app.Redis.Username, app.Redis.Password = "poor", "secret"
	s := newSite(t, app, zoneBlock("poor", "sync_rate 0\nlimit 3/1h\nalgorithm sliding_log"))
	s.admits("1.2.3.4", 5, 3)
	if st := s.app.shared.Replicator.Status(); st.Up || st.Failing["poor sync_rate strict"] == "" {
		t.Errorf("redis refuses to decide, and the status says %+v", st)
	}
}

func TestQuietNodesLearnTheTotalOfAKey(t *testing.T) {
	r := redistest.Start(t)
	s := newSite(t, appWith(r), zoneBlock("quiet", "sync_rate 2s\nlimit 10/1h\nalgorithm fixed_window"))
	s.admits("1.2.3.4", 1, 1)
	shows(t, "quiet", "is sent", func(z operate.LimitState) bool { return z.Unsent == 0 })
	// Another node's total for the same key arrives after this node's last request.
	key := r.Client().Keys(context.Background(), "test:*:quiet:*").Val()[0]
	r.Do("HSET", key, "other", "1 4 4", "sum", "5 5")
	shows(t, "quiet", "is known", func(z operate.LimitState) bool { return z.Remote == 4 })
}

func TestReloadsLeaveNoGoroutine(t *testing.T) {
	r := redistest.Start(t)
	before := goleak.IgnoreCurrent()
	block := zoneBlock("leaks", "sync_rate 50ms\nlimit 100/1h") + zoneBlock("strict-leaks", "sync_rate 0\nlimit 100/1h\nalgorithm gcra")
	s := newSite(t, appWith(r), block)
	for range 10 {
		s.admits("1.2.3.4", 2, 2)
		if _, err := trySite(t, appWith(r), zoneBlock("leaks", "limit 1/1h")+zoneBlock("bad", "key {http.request.nonsense}\nlimit 1/1h")); err == nil {
			t.Fatal("a bad configuration was accepted")
		}
		s2 := newSite(t, appWith(r), block)
		s.end()
		s = s2
	}
	s.end()
	goleak.VerifyNone(t, before)
}

func TestValidateLeavesNoGoroutine(t *testing.T) {
	before := goleak.IgnoreCurrent()
	if err := caddy.Validate(&caddy.Config{
		Admin: &caddy.AdminConfig{Disabled: true},
		AppsRaw: caddy.ModuleMap{
			"rate_limit": []byte(`{"redis": {"url": "redis://127.0.0.1:1"}}`),
			"http": []byte(`{"servers": {"s": {"listen": ["127.0.0.1:0"], "routes": [{"handle": [
				{"handler": "rate_limit", "rate_limits": {"v": {"limits": [{"max_events": 1, "window": "1m"}]}}}]}]}}}`),
		},
	}); err != nil {
		t.Fatal(err)
	}
	goleak.VerifyNone(t, append(caddysOwn, before)...)
}

// A client that goes away while Redis is asked must not pass for a loss of Redis, after which other
// rules hold.
func TestClientsThatGoAwayGetNoMoreFromAStrictZone(t *testing.T) {
	for _, options := range []string{"on_redis_loss allow", "", "algorithm token_bucket", "algorithm sliding_log"} {
		r := redistest.Start(t)
		s := newSite(t, appWith(r), zoneBlock("gone", "limit 3/1h\nsync_rate 0\n"+options))
		passed := 0
		s.next = func(http.ResponseWriter, *http.Request) error { passed++; return nil }
		for i := range 60 {
			request := s.request("1.2.3.4")
			ctx, cancel := context.WithCancel(request.Context())
			if i%10 != 9 {
				cancel()
			}
			s.send(request.WithContext(ctx))
			cancel()
		}
		if passed > 3 {
			t.Errorf("%q: %d requests passed, want 3 at most", options, passed)
		}
		s.end()
	}
}

func TestCountsAreSentWhenAZoneNoLongerSyncs(t *testing.T) {
	for what, after := range map[string]func(r *redistest.Server) *App{
		"sync_rate local": appWith,
		"no redis":        func(*redistest.Server) *App { return &App{Namespace: "test"} },
	} {
		r := redistest.Start(t)
		s := newSite(t, appWith(r), zoneBlock("unsynced", "limit 100/1h\nsync_rate 30s\nearly_sync off"))
		redistest.Eventually(t, "the sync has begun", func() bool { return s.app.shared.Replicator.Status().Nodes == 1 })
		s.admits("1.2.3.4", 7, 7)
		s2 := newSite(t, after(r), zoneBlock("unsynced", "limit 100/1h\nsync_rate local"))
		s.end()
		if keys := r.Client().Keys(context.Background(), "test:*:unsynced:*").Val(); len(keys) != 1 {
			t.Errorf("%s: redis holds %q of the zone, want what was counted until then", what, keys)
		}
		s2.end()
	}
}

func TestAZoneThatIsNotSyncedYetHasLostNothing(t *testing.T) {
	r := redistest.Start(t)
	s := newSite(t, appWith(r), zoneBlock("first", "limit 10/1h"))
	defer s.end()
	s2 := newSite(t, appWith(r), zoneBlock("second", "limit 10/1h\non_redis_loss deny"))
	s2.admits("1.2.3.4", 1, 1) // s has not stopped, and s2 not had its way
}

// A password that stands in a file may be rotated: the next connection has the new one, without a
// reload.
func TestRotatedPasswordInAFile(t *testing.T) {
	for name, of := range map[string]func(r *redistest.Server, file string) *redisconn.Options{
		"options": func(r *redistest.Server, file string) *redisconn.Options {
			return &redisconn.Options{Address: []string{r.Addr}, Username: "app", Password: "{file." + file + "}"}
		},
		"url": func(r *redistest.Server, file string) *redisconn.Options {
			return &redisconn.Options{URL: "redis://app:{file." + file + "}@" + r.Addr}
		},
	} {
		r := redistest.Start(t, redistest.User("app", "on >first ~* +@all"))
		file := filepath.Join(t.TempDir(), "password")
		write := func(password string) {
			if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("first")
		zone := "rotated-" + name
		s := newSite(t, &App{Redis: of(r, file), Namespace: "test"}, zoneBlock(zone, "sync_rate 50ms\nlimit 10/1h\nalgorithm fixed_window"))
		s.admits("1.2.3.4", 2, 2)
		shows(t, zone, "is sent", func(z operate.LimitState) bool { return z.Own == 2 && z.Unsent == 0 })
		r.Do("ACL", "SETUSER", "app", "resetpass", ">second")
		r.Do("CLIENT", "KILL", "USER", "app")
		redistest.Eventually(t, "the loss is noticed", func() bool { return s.lost(zone) })
		s.admits("1.2.3.4", 3, 3)
		write("second")
		shows(t, zone, "is sent", func(z operate.LimitState) bool { return z.Own == 5 && z.Unsent == 0 })
		redistest.Eventually(t, "all is well", func() bool { return operate.CurrentState().Redis.Up })
		s.end()
	}
}

// In a strict zone each rule holds while Redis is gone, at the first request already, and Redis
// decides again when it is back. It keeps what it knows on disk here, so that at the end all that
// was admitted and counted is held against the limit.
func TestStrictRulesWhileRedisIsLost(t *testing.T) {
	r := redistest.Start(t, redistest.Config("--appendonly", "yes", "--appendfsync", "always"))
	rules := []string{"local", "divide", "allow", "deny"}
	block := "sync_rate strict\n"
	for _, rule := range rules {
		block += zoneBlock("strict-"+rule, "match {\npath /"+rule+"\n}\nlimit 10/1h\nalgorithm fixed_window\non_redis_loss "+rule)
	}
	s := newSite(t, appWith(r), block)
	r.Do("HSET", "test:2:{0}:nodes", "other", fmt.Sprint("1 ", time.Now().Add(time.Hour).UnixMilli()))
	redistest.Eventually(t, "two nodes", func() bool { return s.app.shared.Replicator.Nodes() == 2 })
	for _, rule := range rules {
		s.admits("1.2.3.4", 4, 4, to("/"+rule))
	}
	if st := operate.CurrentState(); st.Strict == nil || st.Strict.Open != 0 || st.Strict.Trips != 0 {
		t.Errorf("with Redis there: %+v, want no circuit open", st.Strict)
	}
	r.Kill()
	s.admits("1.2.3.4", 20, 6, to("/local"))
	s.admits("1.2.3.4", 20, 1, to("/divide"))
	_, text := ask(http.MethodPost, operate.ExplainPath, `{"zone":"strict-divide","key":"1.2.3.4"}`)
	if !strings.Contains(text, `"limit":10,"window":"1h","used":5,`) || !strings.Contains(text, `"remaining":0,"share":5,`) {
		t.Errorf("of the limit of 10 that is divided explain says %s, want five used and a share of five", text)
	}
	s.admits("1.2.3.4", 20, 20, to("/allow"))
	if a := s.get("1.2.3.4", to("/deny")); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
		t.Errorf("deny: %d %v, want 503 with Retry-After", a.status, a.header)
	}
	if _, text := ask(http.MethodGet, "/rate_limit/", ""); !strings.Contains(text, `"strict-deny":{"admitted":4,"denied":1,"would_deny":0,"unavailable":1}`) {
		t.Errorf("the state says %s, want the denial for want of Redis told apart", text)
	}
	if st := operate.CurrentState(); st.Strict == nil || st.Strict.Open != 1 || st.Strict.Trips == 0 {
		t.Errorf("with Redis gone: %+v, want one circuit open", st.Strict)
	}
	if s := lifecycle.State(); len(s.Redis) != 1 || s.Redis[0].CircuitsOpen != 1 {
		t.Errorf("the metrics show %+v, want one circuit open", s.Redis)
	}
	r.Restart()
	redistest.Eventually(t, "redis decides again", func() bool { return operate.CurrentState().Strict.Open == 0 })
	for rule, left := range map[string]int{"local": 0, "divide": 5, "allow": 6, "deny": 6} {
		shows(t, "strict-"+rule, "is sent", func(z operate.LimitState) bool { return z.Unsent == 0 })
		s.admits("1.2.3.4", 10, left, to("/"+rule))
	}
}

// A Redis that takes connections and never answers costs those requests a timeout that are under
// way when it falls silent, and none after them, however long it stays silent. It is probed
// meanwhile, by nobody's request.
func TestASilentRedisIsWaitedForOnce(t *testing.T) {
	const clients = 8
	r := redistest.Start(t)
	for _, rule := range []string{"local", "divide", "allow", "deny"} {
		proxy := faultproxy.Start(t, r.Addr)
		app := appWith(r)
		app.Redis.Address, app.Redis.Timeout, app.StrictTimeout = []string{proxy.Addr}, caddy.Duration(400*time.Millisecond), caddy.Duration(400*time.Millisecond)
		s := newSite(t, app, zoneBlock("silent-"+rule, "sync_rate strict\nlimit 100000/1h\nkey {http.request.header.K}\non_redis_loss "+rule))
		redistest.Eventually(t, "redis decides", func() bool {
			before := s.app.shared.Strict.Status()
			s.get("1.2.3.4", header("K", "a"))
			return before.Open == 0 && s.app.shared.Strict.Status() == before
		})
		before := s.app.shared.Strict.Status()
		proxy.Set(faultproxy.Blackhole)
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				for range 300 {
					s.get("1.2.3.4", header("K", strconv.Itoa(c)))
				}
			})
		}
		wg.Wait()
		first := s.app.shared.Strict.Status()
		if waited := first.Timeouts - before.Timeouts; waited < 1 || waited > clients || first.Open != 1 {
			t.Errorf("%s: of %d requests %d waited, want at most one of each of the %d clients: %+v", rule, clients*300, waited, clients, first)
		}
		probes := proxy.Requests()
		redistest.Eventually(t, "the silent redis is probed", func() bool {
			s.get("1.2.3.4", header("K", "b"))
			return proxy.Requests() > probes+2
		})
		if now := s.app.shared.Strict.Status(); now.Timeouts != first.Timeouts || now.Trips != first.Trips {
			t.Errorf("%s: while it was probed: %+v, want no more waits than %+v", rule, now, first)
		}
		proxy.Set(faultproxy.None)
		redistest.Eventually(t, "redis decides again", func() bool { return s.app.shared.Strict.Status().Open == 0 })
		calls := r.Calls("evalsha")
		s.admits("1.2.3.4", 1, 1, header("K", "c"))
		if r.Calls("evalsha") == calls {
			t.Errorf("%s: redis was not asked after it answers again", rule)
		}
		s.end()
	}
}

// caddy validate takes a configuration whose Redis is away, and doesn't ask for one that is there.
func TestValidateDoesNotConnect(t *testing.T) {
	there, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	go func() {
		if c, err := there.Accept(); err == nil {
			c.Close()
			close(asked)
		}
	}()
	for _, url := range []string{"redis://" + there.Addr().String(), "redis://nowhere.invalid", "redis://127.0.0.1:1,127.0.0.1:2?master_name=m"} {
		config, err := adapt("{\n\tadmin off\n\trate_limit {\n\t\tredis " + url + "\n\t}\n}\nhttp://a.example {\n\trate_limit {\n\t\t" + zoneBlock("v", "limit 1/1m\nsync_rate strict") + "\t}\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		var c caddy.Config
		if err := caddy.StrictUnmarshalJSON(config, &c); err != nil {
			t.Fatal(err)
		}
		if err := caddy.Validate(&c); err != nil {
			t.Errorf("Validate with %s: %v", url, err)
		}
	}
	there.Close()
	select {
	case <-asked:
		t.Error("redis was connected to")
	default:
	}
}

// A reload leads to another Redis while requests that the old configuration took are on their way:
// they go by the Redis of the current configuration, and never by the rule for a lost one.
func TestRequestsOnTheirWayGoByTheRedisInForce(t *testing.T) {
	first, second := redistest.Start(t), redistest.Start(t)
	for _, rule := range []string{"local", "divide", "allow", "deny"} {
		zone := "successor-" + rule
		block := func(rate string) string {
			return zoneBlock(zone, "limit 20/1h\nalgorithm fixed_window\nsync_rate "+rate+"\non_redis_loss "+rule)
		}
		old := newSite(t, appWith(first), block("strict"))
		old.admits("1.2.3.4", 3, 3)
		next := newSite(t, appWith(second), block("strict"))
		old.end()
		old.admits("1.2.3.4", 4, 4)
		// One that fails when it starts may have served by then.
		failed := newSite(t, appWith(first), block("strict"))
		failed.end()
		failed.admits("1.2.3.4", 2, 2)
		if a, b := sumIn(t, first, zone), sumIn(t, second, zone); a != 3 || b != 6 {
			t.Errorf("%s: the old redis holds %d and the new one %d, want 3 and 6", rule, a, b)
		}
		if st := next.app.shared.Replicator.Status(); len(st.Failing) > 0 {
			t.Errorf("%s: failing after a reload: %v", rule, st.Failing)
		}
		next.admits("1.2.3.4", 15, 14)
		old.admits("1.2.3.4", 1, 0)

		// Where the zone no longer asks Redis, the node's counters decide, as for new requests.
		last := newSite(t, appWith(first), zoneBlock(zone, "limit 25/1h\nalgorithm fixed_window\nsync_rate 50ms\non_redis_loss "+rule))
		next.end()
		next.admits("5.6.7.8", 25, 20)
		last.admits("5.6.7.8", 25, 5)
		shows(t, zone, "is sent", func(z operate.LimitState) bool { return z.Own == 25 && z.Unsent == 0 })

		// And where there is no configuration any more, what the rule says.
		last.end()
		status := map[string]int{"local": http.StatusTooManyRequests, "divide": http.StatusTooManyRequests, "allow": http.StatusOK, "deny": http.StatusServiceUnavailable}
		if a := next.get("5.6.7.8"); a.status != status[rule] {
			t.Errorf("%s: %d after the end, want %d", rule, a.status, status[rule])
		}
	}
}
