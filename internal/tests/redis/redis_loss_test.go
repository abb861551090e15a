package redis_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"
	"go.uber.org/goleak"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

func TestRulesWhileRedisIsLost(t *testing.T) {
	r := redistest.Start(t)
	block := "sync_rate 100ms\n"
	for _, rule := range []string{"local", "divide", "allow", "deny"} {
		block += sitetest.ZoneBlock("loss-"+rule, "match {\npath /"+rule+"\n}\nlimit 10/30d\nalgorithm fixed_window\non_redis_loss "+rule)
	}
	s := sitetest.NewSite(t, sitetest.AppWith(r), block)
	for _, rule := range []string{"local", "divide", "allow", "deny"} {
		redistest.Eventually(t, "the sync begins", func() bool { return !s.Lost("loss-" + rule) })
		s.Admits("1.2.3.4", 4, 4, sitetest.To("/"+rule))
		sitetest.Shows(t, "loss-"+rule, "is sent", func(z operate.LimitState) bool { return z.Own == 4 && z.Unsent == 0 })
	}
	// Another node shows up in the list.
	r.Do("HSET", "test:3:{0}:nodes", "other", sitetest.Lease)
	redistest.Eventually(t, "two nodes", func() bool { return s.Shared().Replicator.Nodes() == 2 })
	r.Kill()
	for _, rule := range []string{"local", "divide", "allow", "deny"} {
		redistest.Eventually(t, "the loss is noticed", func() bool { return s.Lost("loss-" + rule) })
	}
	sitetest.Shows(t, "loss-divide", "is divided", func(z operate.LimitState) bool { return z.Divided() == ", divided: 5 of it here" })
	sitetest.Shows(t, "loss-local", "is whole", func(z operate.LimitState) bool { return z.Share == 0 })
	s.Admits("1.2.3.4", 10, 6, sitetest.To("/local"))
	s.Admits("1.2.3.4", 10, 1, sitetest.To("/divide"))
	s.Admits("1.2.3.4", 10, 10, sitetest.To("/allow"))
	if a := s.Get("1.2.3.4", sitetest.To("/deny")); a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("deny: %d %v, want 503 with Retry-After", a.Status, a.Header)
	}
	r.Restart()
	for _, rule := range []string{"local", "divide", "allow", "deny"} {
		redistest.Eventually(t, "redis is back", func() bool { return !s.Lost("loss-" + rule) })
	}
	sitetest.Shows(t, "loss-divide", "is whole", func(z operate.LimitState) bool { return z.Share == 0 })
	s.Admits("1.2.3.4", 10, 6, sitetest.To("/deny"))
}

func TestWindowsSurviveAChangeOfSyncRate(t *testing.T) {
	r := redistest.Start(t)
	block := func(rate string) string {
		return sitetest.ZoneBlock("rates", "sync_rate "+rate+"\nlimit 20/30d\nalgorithm fixed_window")
	}
	s := sitetest.NewSite(t, sitetest.AppWith(r), block("0"))
	s.Admits("1.2.3.4", 5, 5)
	for _, rate := range []string{"100ms", "0", "local", "50ms", "0"} {
		s2 := sitetest.NewSite(t, sitetest.AppWith(r), block(rate))
		s.End()
		s = s2
		if rate != "local" {
			redistest.Eventually(t, "the sync begins", func() bool { return !s.Lost("rates") })
		}
		if rate == "0" {
			sitetest.Shows(t, "rates", "is sent", func(z operate.LimitState) bool { return z.Unsent == 0 })
		}
		s.Admits("1.2.3.4", 2, 2)
	}
	s.Admits("1.2.3.4", 20, 5)
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

func (*lender) Lock(context.Context, string) error { return nil }

func (*lender) Unlock(context.Context, string) error { return nil }

var lent lender

func TestBorrowedClient(t *testing.T) {
	r := redistest.Start(t)
	lent.client = r.Client()
	caddy.RegisterModule(&lent)
	block := sitetest.ZoneBlock("borrowed", "sync_rate 50ms\nlimit 10/30d\nalgorithm fixed_window")
	s := sitetest.NewSiteWith(t, &caddy.Config{StorageRaw: []byte(`{"module":"lender"}`)}, &ratelimit.App{Redis: &redisconn.Options{Storage: true}}, block)
	s.Admits("1.2.3.4", 4, 4)
	sitetest.Shows(t, "borrowed", "is sent", func(z operate.LimitState) bool { return z.Own == 4 && z.Unsent == 0 })
	s2 := sitetest.NewSiteWith(t, &caddy.Config{StorageRaw: []byte(`{"module":"lender"}`)}, &ratelimit.App{Redis: &redisconn.Options{Storage: true}}, block)
	s.End()
	s2.Admits("1.2.3.4", 3, 3)
	s2.End()
	if err := r.Client().Ping(context.Background()).Err(); err != nil {
		t.Errorf("the borrowed client was closed: %v", err)
	}
	s = sitetest.NewSiteWith(t, &caddy.Config{StorageRaw: []byte(`{"module":"lender"}`)}, &ratelimit.App{Redis: &redisconn.Options{Storage: true}}, block)
	s.Admits("1.2.3.4", 1, 1)
	sitetest.Shows(t, "borrowed", "is known", func(z operate.LimitState) bool { return z.Remote == 7 })
}

func TestStrictFailuresAreReported(t *testing.T) {
	r := redistest.Start(t, redistest.User("poor", "on >secret ~test:* +@all -hset"))
	app := sitetest.AppWith(r)
	app.Redis.Username, app.Redis.Password = "poor", "secret"
	s := sitetest.NewSite(t, app, sitetest.ZoneBlock("poor", "sync_rate 0\nlimit 3/30d\nalgorithm sliding_log"))
	s.Admits("1.2.3.4", 5, 3)
	if st := s.Shared().Replicator.Status(); st.Up || st.Failing["poor sync_rate strict"] == "" {
		t.Errorf("redis refuses to decide, and the status says %+v", st)
	}
}

func TestCountsAreSentWhenAZoneNoLongerSyncs(t *testing.T) {
	for what, after := range map[string]func(r *redistest.Server) *ratelimit.App{
		"sync_rate local": sitetest.AppWith,
		"no redis":        func(*redistest.Server) *ratelimit.App { return &ratelimit.App{Namespace: "test"} },
	} {
		r := redistest.Start(t)
		s := sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock("unsynced", "limit 100/30d\nsync_rate 30s\nearly_sync off"))
		redistest.Eventually(t, "the sync has begun", func() bool { return s.Shared().Replicator.Status().Nodes == 1 })
		s.Admits("1.2.3.4", 7, 7)
		s2 := sitetest.NewSite(t, after(r), sitetest.ZoneBlock("unsynced", "limit 100/30d\nsync_rate local"))
		s.End()
		if keys := r.Client().Keys(context.Background(), "test:*:unsynced:*").Val(); len(keys) != 1 {
			t.Errorf("%s: redis holds %q of the zone, want what was counted until then", what, keys)
		}
		s2.End()
	}
}

func TestAZoneThatIsNotSyncedYetHasLostNothing(t *testing.T) {
	r := redistest.Start(t)
	s := sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock("first", "limit 10/30d"))
	defer s.End()
	s2 := sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock("second", "limit 10/30d\non_redis_loss deny"))
	s2.Admits("1.2.3.4", 1, 1) // s has not stopped, and s2 not had its way
}

// In a strict zone each rule holds while Redis is gone, at the first request already, and Redis
// decides again when it is back. It keeps what it knows on disk here, so that at the end all that
// was admitted and counted is held against the limit.
func TestStrictRulesWhileRedisIsLost(t *testing.T) {
	r := redistest.Start(t, redistest.Config("--appendonly", "yes", "--appendfsync", "always"))
	rules := []string{"local", "divide", "allow", "deny"}
	block := "sync_rate strict\n"
	for _, rule := range rules {
		block += sitetest.ZoneBlock("strict-"+rule, "match {\npath /"+rule+"\n}\nlimit 10/30d\nalgorithm fixed_window\non_redis_loss "+rule)
	}
	s := sitetest.NewSite(t, sitetest.AppWith(r), block)
	r.Do("HSET", "test:3:{0}:nodes", "other", sitetest.Lease)
	redistest.Eventually(t, "two nodes", func() bool { return s.Shared().Replicator.Nodes() == 2 })
	for _, rule := range rules {
		s.Admits("1.2.3.4", 4, 4, sitetest.To("/"+rule))
	}
	if st := operate.CurrentState(); st.Strict == nil || st.Strict.Open != 0 || st.Strict.Trips != 0 {
		t.Errorf("with Redis there: %+v, want no circuit open", st.Strict)
	}
	r.Kill()
	s.Admits("1.2.3.4", 20, 6, sitetest.To("/local"))
	s.Admits("1.2.3.4", 20, 1, sitetest.To("/divide"))
	_, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, `{"zone":"strict-divide","key":"1.2.3.4"}`)
	if !strings.Contains(text, `"limit":10,"window":"30d","used":5,`) || !strings.Contains(text, `"remaining":0,"share":5,`) {
		t.Errorf("of the limit of 10 that is divided explain says %s, want five used and a share of five", text)
	}
	s.Admits("1.2.3.4", 20, 20, sitetest.To("/allow"))
	if a := s.Get("1.2.3.4", sitetest.To("/deny")); a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("deny: %d %v, want 503 with Retry-After", a.Status, a.Header)
	}
	if _, text := sitetest.Ask(http.MethodGet, "/rate_limit/", ""); !strings.Contains(text, `"strict-deny":{"admitted":4,"denied":1,"would_deny":0,"unavailable":1}`) {
		t.Errorf("the state says %s, want the denial for want of Redis told apart", text)
	}
	if st := operate.CurrentState(); st.Strict == nil || st.Strict.Open != 1 || st.Strict.Trips == 0 {
		t.Errorf("with Redis gone: %+v, want one circuit open", st.Strict)
	}
	sitetest.Scrape(t, func(name string, _ map[string]string, value float64) {
		if name == "caddy_rate_limit_circuits_open" && value != 1 {
			t.Errorf("the metrics show %v open circuits, want 1", value)
		}
	})
	r.Restart()
	redistest.Eventually(t, "redis decides again", func() bool { return operate.CurrentState().Strict.Open == 0 })
	for rule, left := range map[string]int{"local": 0, "divide": 5, "allow": 6, "deny": 6} {
		sitetest.Shows(t, "strict-"+rule, "is sent", func(z operate.LimitState) bool { return z.Unsent == 0 })
		s.Admits("1.2.3.4", 10, left, sitetest.To("/"+rule))
	}
}

// A reload into another namespace says there at once what the node has spent, also of keys that
// nobody asks for any more, as one to another Redis does.
func TestAnotherNamespaceIsToldWhatWasSpent(t *testing.T) {
	r := redistest.Start(t)
	for _, rate := range []string{"50ms", "strict"} {
		for _, algorithm := range everyCountingAlgorithm {
			zone := "moved-" + rate + "-" + algorithm
			block := sitetest.ZoneBlock(zone, "limit 10/30d\nalgorithm "+algorithm+"\nsync_rate "+rate)
			told := func(namespaces int64) bool {
				if algorithm == "token_bucket" || algorithm == "gcra" {
					return sitetest.LevelIn(t, r, zone) > 3*namespaces-2 // less what has drained
				}
				return sitetest.SumIn(t, r, zone) == 3*namespaces
			}
			old := sitetest.NewSite(t, sitetest.AppWith(r), block)
			old.Admits("1.2.3.4", 3, 3)
			redistest.Eventually(t, zone+" is told", func() bool { return told(1) })
			app := sitetest.AppWith(r)
			app.Namespace = "test:moved"
			next := sitetest.NewSite(t, app, block)
			old.End()
			redistest.Eventually(t, zone+" is told in both", func() bool { return told(2) })
			next.Admits("1.2.3.4", 9, 7)
			next.End()
		}
	}
}

// A reload leads to another Redis while requests that the old configuration took are on their way:
// they go by the Redis of the current configuration, and never by the rule for a lost one. What the
// node has counted is brought along.
func TestRequestsOnTheirWayGoByTheRedisInForce(t *testing.T) {
	first, second := redistest.Start(t), redistest.Start(t)
	for _, rule := range []string{"local", "divide", "allow", "deny"} {
		zone := "successor-" + rule
		block := func(rate string) string {
			return sitetest.ZoneBlock(zone, "limit 20/30d\nalgorithm fixed_window\nsync_rate "+rate+"\non_redis_loss "+rule)
		}
		old := sitetest.NewSite(t, sitetest.AppWith(first), block("strict"))
		old.Admits("1.2.3.4", 3, 3)
		next := sitetest.NewSite(t, sitetest.AppWith(second), block("strict"))
		old.End()
		old.Admits("1.2.3.4", 4, 4)
		// One that fails when it starts may have served by then.
		failed := sitetest.NewSite(t, sitetest.AppWith(first), block("strict"))
		failed.End()
		failed.Admits("1.2.3.4", 2, 2)
		if a, b := sitetest.SumIn(t, first, zone), sitetest.SumIn(t, second, zone); a != 3 || b != 9 {
			t.Errorf("%s: the old redis holds %d and the new one %d, want 3 and 9", rule, a, b)
		}
		if st := next.Shared().Replicator.Status(); len(st.Failing) > 0 {
			t.Errorf("%s: failing after a reload: %v", rule, st.Failing)
		}
		next.Admits("1.2.3.4", 15, 11)
		old.Admits("1.2.3.4", 1, 0)

		// Where the zone no longer asks Redis, the node's counters decide, as for new requests.
		last := sitetest.NewSite(t, sitetest.AppWith(first), sitetest.ZoneBlock(zone, "limit 25/30d\nalgorithm fixed_window\nsync_rate 50ms\non_redis_loss "+rule))
		next.End()
		next.Admits("5.6.7.8", 25, 20)
		last.Admits("5.6.7.8", 25, 5)
		sitetest.Shows(t, zone, "is sent", func(z operate.LimitState) bool { return z.Own == 45 && z.Unsent == 0 })

		// And where there is no configuration any more, what the rule says, once the last word of
		// Redis is a second old.
		last.End()
		status := map[string]int{"local": http.StatusTooManyRequests, "divide": http.StatusTooManyRequests, "allow": http.StatusOK, "deny": http.StatusServiceUnavailable}
		redistest.Eventually(t, rule+" holds after the end", func() bool { return next.Get("5.6.7.8").Status == status[rule] })
	}
}

// caddy validate takes a configuration whose Redis is away, doesn't ask for one that is there, and
// leaves no goroutine.
func TestValidateDoesNotConnect(t *testing.T) {
	before := goleak.IgnoreCurrent()
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
		config, err := sitetest.Adapt("{\n\tadmin off\n\trate_limit {\n\t\tredis " + url + "\n\t}\n}\nhttp://a.example {\n\trate_limit {\n\t\t" + sitetest.ZoneBlock("v", "limit 1/30d\nsync_rate strict") + "\t}\n}\n")
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
	goleak.VerifyNone(t, append(sitetest.CaddysOwn, before)...)
}
