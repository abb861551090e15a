package recipes_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// validate loads a configuration as far as caddy validate does.
func validate(t testing.TB, where string, config []byte) {
	t.Helper()
	var c caddy.Config
	if err := caddy.StrictUnmarshalJSON(config, &c); err != nil {
		t.Errorf("%s: StrictUnmarshalJSON: %v", where, err)
		return
	}
	c.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{Level: "ERROR"}}}}
	if err := caddy.Validate(&c); err != nil {
		t.Errorf("%s: Validate: %v", where, err)
	}
}

// validateCaddyfile also wants it written as caddy fmt writes it.
func validateCaddyfile(t testing.TB, where, text string) {
	t.Helper()
	config, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Errorf("%s: Adapt: %v", where, err)
		return
	}
	for _, w := range warnings {
		t.Errorf("%s: Adapt warns: %v", where, w)
	}
	validate(t, where, config)
}

func TestConfigurationsOfThePagesLoad(t *testing.T) {
	n := map[string]int{}
	for _, page := range sitetest.Pages(t) {
		for _, b := range sitetest.BlocksOf(t, page, "caddyfile") {
			validateCaddyfile(t, b.String(), b.Text)
			n["Caddyfiles"]++
		}
		for _, b := range sitetest.BlocksOf(t, page, "json") {
			if strings.Contains(b.Text, `"apps"`) {
				validate(t, b.String(), []byte(b.Text))
				n["JSON"]++
			}
		}
	}
	if n["Caddyfiles"] < 10 || n["JSON"] == 0 {
		t.Errorf("found %v in the pages, want more", n)
	}
}

// What a newcomer starts first says nothing but what it does: neither we nor Caddy warn of
// anything.
func TestCaddyfileExampleStartsClean(t *testing.T) {
	r := redistest.Start(t)
	for _, url := range []string{"", r.URL} {
		if url != "" {
			t.Setenv("REDIS_URL", url)
		}
		validateCaddyfile(t, fmt.Sprintf("Caddyfile.example with REDIS_URL=%q", url), sitetest.ReadPage(t, "Caddyfile.example"))
		path := filepath.Join(t.TempDir(), "log")
		text := strings.NewReplacer(
			":8080", ":"+strconv.Itoa(redistest.FreePort(t)), ":8081", ":"+strconv.Itoa(redistest.FreePort(t)),
			"admin localhost:2019", "admin 127.0.0.1:"+strconv.Itoa(redistest.FreePort(t))+"\n\tpersist_config off\n\tlog {\n\t\toutput file "+path+"\n\t\tformat json\n\t}",
		).Replace(sitetest.ReadPage(t, "Caddyfile.example"))
		config, err := sitetest.Adapt(text)
		if err != nil {
			t.Fatal(err)
		}
		if app := sitetest.AppIn(t, config); (url == "") != (app.Redis.URL == redisconn.Off) {
			t.Errorf("with REDIS_URL=%q the redis is %q", url, app.Redis.URL)
		}
		if err := errors.Join(caddy.Load(config, true), caddy.Stop()); err != nil {
			t.Fatal(err)
		}
		log := sitetest.ReadPage(t, path)
		if !strings.Contains(log, "server running") {
			t.Errorf("no server was started: %s", log)
		}
		for line := range strings.Lines(log) {
			if !strings.Contains(line, `"level":"info"`) {
				t.Errorf("with REDIS_URL=%q the log has %s", url, line)
			}
		}
	}
}

// everyKind is a zone with each algorithm.
func everyKind(t testing.TB, syncRate config.SyncRate) (all []config.Settings) {
	t.Helper()
	for kind, algorithm := range algorithms.KindNames() {
		s := config.Settings{Name: algorithm, Limits: []config.Rate{{Limit: 100, Window: 30 * 24 * time.Hour}}, Kind: algorithms.Kind(kind), Key: "{http.vars.client_ip}", IPv4Prefix: 32, IPv6Prefix: 64, SubWindows: 1, MaxKeys: 1_000_000, SyncRate: syncRate, CountDenied: true, EarlySync: true, Regions: true}
		if algorithm == "leaky_bucket" {
			s.Queue = 1
		}
		all = append(all, s)
	}
	return all
}

// newZone compiles a zone that belongs to no handler.
func newZone(t testing.TB, o limits.ZoneOptions) *limits.Zone {
	t.Helper()
	z, err := limits.NewZone(o)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// aclOf is the user in docs/redis.md: its name, its password and its rules.
func aclOf(t *testing.T) (user, password, rules string) {
	t.Helper()
	for _, b := range sitetest.BlocksOf(t, "docs/redis.md", "text") {
		if m := regexp.MustCompile(`^user (\S+) (on >(\S+) .*)\n$`).FindStringSubmatch(b.Text); m != nil {
			return m[1], m[3], m[2]
		}
	}
	t.Fatal("docs/redis.md has no ACL user")
	return "", "", ""
}

// alsoOf are the rules that docs/redis.md has beside those of the user, after a text.
func alsoOf(t *testing.T, text string) string {
	t.Helper()
	more := regexp.MustCompile(text + ": `([^`]+)`").FindStringSubmatch(sitetest.ReadPage(t, "docs/redis.md"))
	if more == nil {
		t.Fatalf("docs/redis.md has no rules after %q", text)
	}
	return more[1]
}

func TestDocumentedACLIsEnough(t *testing.T) {
	user, password, rules := aclOf(t)
	as := func(url string) string { return strings.Replace(url, "://", "://"+user+":"+password+"@", 1) }
	t.Run("alone", func(t *testing.T) {
		server := redistest.Start(t, redistest.User(user, rules))
		checkACL(t, server, as(server.URL))
	})
	t.Run("Cluster", func(t *testing.T) {
		cluster := redistest.StartCluster(t, 3, redistest.User(user, rules+" "+alsoOf(t, "a Cluster")))
		for _, node := range cluster.Nodes {
			defer func() { checkACLLog(t, node) }()
		}
		checkACL(t, cluster.Nodes[0], as(cluster.URL))
	})
	t.Run("Sentinel", func(t *testing.T) {
		watched := redistest.StartSentinel(t, redistest.User(user, rules))
		watched.Sentinel.Allow("watcher", "on >other "+alsoOf(t, "`sentinel_username`\\)"))
		checkACL(t, watched.Master, as(watched.URL)+"&sentinel_username=watcher&sentinel_password=other")
		checkACLLog(t, watched.Sentinel)
	})
}

// The page's Sentinel has TLS, users and passwords in files, and a master's new password needs no
// reload.
func TestSentinelOfThePage(t *testing.T) {
	user, _, rules := aclOf(t)
	watched := redistest.StartSentinel(t, redistest.TLS(false), redistest.User(user, strings.Replace(rules, ">secret", ">first >second", 1)))
	watched.Sentinel.Allow("watcher", "on >other allchannels -@all +sentinel +subscribe +ping")
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	global, site := sitetest.SiteInPage(t, "docs/redis.md", "shop.example.com")
	s := sitetest.StartCaddy(t, strings.NewReplacer(
		"sentinel1:26379 sentinel2:26379 sentinel3:26379", watched.Sentinel.Addr, "tls_enabled", "tls_enabled\n\t\t\ttls_server_certs_path "+write("ca.pem", watched.Sentinel.CA),
		"/run/secrets/redis_password", write("redis_password", "first"), "/run/secrets/sentinel_password", write("sentinel_password", "other"),
	).Replace(global), site+"\nrespond ok")
	s.Answers("HTTP/1.1", 3, http.StatusOK, 3)
	synced := func(count int) {
		t.Helper()
		redistest.Eventually(t, fmt.Sprintf("Redis has %d requests", count), func() bool {
			status := sitetest.AnswerOf[operate.State](t, http.MethodGet, "/rate_limit/", "")
			return status.Redis.Up && status.Zones[0].Own == int64(count) && status.Zones[0].Unsent == 0
		})
	}
	synced(3)
	write("redis_password", "second")
	watched.Master.Do("ACL", "SETUSER", user, "<first")
	watched.Master.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	s.Answers("HTTP/1.1", 2, http.StatusOK, 2)
	synced(5)
}

func checkACLLog(t *testing.T, server *redistest.Server) {
	t.Helper()
	if denied, ok := server.Do("ACL", "LOG").([]any); !ok || len(denied) > 0 {
		t.Errorf("ACL LOG = %v, want nothing denied", denied)
	}
}

// checkACL syncs and decides with every algorithm.
func checkACL(t *testing.T, server *redistest.Server, url string) {
	t.Helper()
	set, err := redisconn.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	client, err := set.Client()
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.WarnLevel)
	defer client.Close()
	shared := limits.BorrowRedis(client, limits.RedisOptions{
		Namespace: redisconn.DefaultNamespace, Timeout: time.Minute, StrictTimeout: time.Minute, Logger: zap.New(core),
	})
	current := &lifecycle.Config{Logger: zap.NewNop(), Redis: shared, StrictTimeout: time.Minute}
	add := func(s config.Settings, namespace string) *limits.Limit {
		z := newZone(t, limits.ZoneOptions{Settings: s, Namespace: namespace, Redis: shared, Sweep: time.Minute})
		t.Cleanup(z.Release)
		current.Add(z)
		return sitetest.FirstOf(z)
	}
	var synced, asked []*limits.Limit
	for _, s := range everyKind(t, config.SyncRate(config.MinSync)) {
		synced = append(synced, add(s, "synced"))
	}
	for _, s := range everyKind(t, config.Strict) {
		asked = append(asked, add(s, "strict"))
	}
	current.Start()
	defer current.Stop()
	share := 0.5
	o, err := shared.Control.Change(t.Context(), control.Change{Target: control.Target{Zone: "any"}, Body: control.Body{Share: &share}, For: time.Hour})
	if err != nil || o.Applied != 1 || o.Unsent {
		t.Errorf("a change at run time: %+v, %v", o, err)
	}

	raw := []byte("key")
	for _, l := range synced {
		l.Take(keys.KeyOf(raw), raw, clock.Now(), 1, 0)
		redistest.Eventually(t, l.Settings.Name+" is synced", func() bool { return l.Totals().Own == 1 && l.Totals().Unsent == 0 })
	}
	redistest.Eventually(t, "the node is known", func() bool { return shared.Replicator.Status().Up && shared.Replicator.Status().Nodes == 1 })

	for _, l := range asked {
		checkACLStrict(t, shared, l, raw)
	}
	for _, l := range asked {
		redistest.Eventually(t, l.Settings.Name+" is said", func() bool { return l.Totals().Unsent == 0 })
	}
	for _, line := range logs.All() {
		// A shard of a Cluster has a second to answer, which a busy machine can take.
		if reason := fmt.Sprint(line.ContextMap()["reason"]); !strings.HasPrefix(reason, "timeout") {
			t.Errorf("the sync warns: %v", line)
		}
	}
	checkACLLog(t, server)
}

// checkACLStrict has Redis decide for a limit, says what is refunded, and has the node decide
// alone, which it says later.
func checkACLStrict(t *testing.T, shared *limits.Redis, l *limits.Limit, raw []byte) {
	t.Helper()
	s := l.Settings
	one := s.Params(config.Rate{Limit: 1, Window: l.Rate.Window})
	ask := &strict.Request{
		Counters: []strict.Counter{{Table: l.Table, Syncer: l.Syncer}}, Limits: []algorithms.Limit{one.Compile()}, Key: keys.KeyOf(raw), Raw: raw, N: 1,
	}
	for i := range 4 {
		took, err := shared.Strict.Ask(t.Context(), s.Name, ask, nil)
		if err != nil {
			t.Fatalf("%s: Ask = %v, %v", s.Name, took, err)
		}
		if i == 0 {
			l.Table.Refund(l.Effective, keys.KeyOf(raw), took[0], 1)
		}
	}
	l.Take(keys.KeyOf(raw), raw, clock.Now(), 1, 0)
}

// BenchmarkMemoryPerKey is what a key costs in memory, with its place in the table: the figures of
// docs/internals/costs.md.
func BenchmarkMemoryPerKey(b *testing.B) {
	const keys = 200_000
	all := everyKind(b, config.Local)
	ten := all[slices.IndexFunc(all, func(s config.Settings) bool { return s.Kind == algorithms.SlidingWindow })]
	ten.Name, ten.SubWindows = "sliding_window_10_buckets", 10
	for _, s := range append(all, ten) {
		for _, hits := range []int{1, 100} {
			if hits > 1 && s.Kind != algorithms.SlidingLog {
				continue
			}
			b.Run(fmt.Sprintf("%s/requests=%d", s.Name, hits), func(b *testing.B) {
				b.ReportMetric(0, "ns/op")
				for range b.N {
					before := sitetest.HeapBytes()
					z := newZone(b, limits.ZoneOptions{Settings: s})
					fill(sitetest.FirstOf(z), keys, hits)
					b.ReportMetric(float64(sitetest.HeapBytes()-before)/keys, "B/key")
					z.Release()
				}
			})
		}
	}
}

// fill makes requests of many keys, and comes back to them in the next sub-window where a window
// has several.
func fill(l *limits.Limit, keyCount, hits int) {
	now, raw := clock.Now(), make([]byte, 8)
	for sub := range l.Settings.SubWindows {
		at := now + int64(sub)*int64(l.Rate.Window)/int64(l.Settings.SubWindows)
		for key := range keyCount {
			binary.LittleEndian.PutUint64(raw, uint64(key))
			for hit := range hits {
				l.Take(keys.KeyOf(raw), raw, at+int64(hit)*1000, 1, 0)
			}
		}
	}
}
