package limits

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// kinds are all algorithms.
var kinds = []algorithms.Kind{
	algorithms.FixedWindow, algorithms.SlidingWindow, algorithms.SlidingLog, algorithms.TokenBucket, algorithms.GCRA, algorithms.LeakyBucket,
}

// keyOfRequests is the template of the keys in these tests.
const keyOfRequests = "{http.request.header.K}"

// twins are two zones that differ in their names, and in that one is enforced and one is not.
type twins struct{ enforced, shadow []*Zone }

func newTwins(t testing.TB, s config.Settings, redis *Redis) (w twins) {
	t.Helper()
	s.Key, s.IPv4Prefix, s.IPv6Prefix, s.EarlySync = keyOfRequests, 32, 64, true
	for _, off := range []bool{false, true} {
		one := s
		if off {
			one.Name, one.Enforce = s.Name+"-shadow", config.Enforce(0)
		}
		z, err := NewZone(ZoneOptions{Settings: one, Redis: redis, Sweep: time.Minute, Logger: zap.NewNop(), Once: new(warning.Once)})
		if err != nil {
			t.Fatal(err)
		}
		zones := []*Zone{z}
		Arrange(zones)
		if off {
			w.shadow = zones
		} else {
			w.enforced = zones
		}
	}
	return w
}

func (w twins) release() {
	w.enforced[0].Release()
	w.shadow[0].Release()
}

// each calls yield with each limit of both.
func (w twins) each(yield func(*Limit) bool) {
	for _, z := range []*Zone{w.enforced[0], w.shadow[0]} {
		for l := range z.Each {
			if !yield(l) {
				return
			}
		}
	}
}

// differ sends one request of a key through both, and says what differs between the denial and the
// one that would have been, "" for nothing. Their waits may differ by as much as apart.
func (w twins) differ(key string, apart time.Duration) (denied bool, what string) {
	now := clock.Now()
	enforced, err := Evaluate(w.enforced, request(key), now)
	if err != nil {
		return false, err.Error()
	}
	defer enforced.Free()
	shadow, err := Evaluate(w.shadow, request(key), now)
	if err != nil {
		return false, err.Error()
	}
	defer shadow.Free()
	would := shadow.WouldDeny
	switch denied = enforced.Denied; {
	case shadow.Denied:
		return denied, "a zone that is not enforced denies"
	case denied != (would.Zone != ""):
		return denied, fmt.Sprintf("denied %t, would deny %t", denied, would.Zone != "")
	case denied && (enforced.Denial.Wait-would.Wait).Abs() > apart:
		return denied, fmt.Sprintf("denied for %s, would be for %s", enforced.Denial.Wait, would.Wait)
	}
	for _, r := range shadow.Results() {
		if !r.Shadow {
			return denied, "a result passes for an enforced one"
		}
	}
	return denied, ""
}

// lawfulZone is any zone that decides for itself.
//
// bubble: its requests are sent there.
func lawfulZone(rt *rapid.T) config.Settings {
	s := config.Settings{
		Name: "law", Kind: rapid.SampledFrom(kinds).Draw(rt, "kind"), SubWindows: 1, SyncRate: config.Local,
		MaxKeys:     rapid.SampledFrom([]int{2, 1000}).Draw(rt, "max_keys"),
		CountDenied: rapid.Bool().Draw(rt, "count_denied"),
		EmptyKey:    rapid.SampledFrom([]config.EmptyKey{config.EmptyShare, config.EmptyDeny, config.EmptySkip}).Draw(rt, "empty_key"),
		Limits:      []config.Rate{{Limit: rapid.Int64Range(0, 5).Draw(rt, "limit"), Window: 10 * time.Second}},
	}
	if rapid.Bool().Draw(rt, "two limits") {
		s.Limits = append(s.Limits, config.Rate{Limit: rapid.Int64Range(1, 8).Draw(rt, "second limit"), Window: 30 * time.Second})
	}
	switch s.Kind {
	case algorithms.SlidingWindow:
		s.SubWindows = rapid.IntRange(1, 4).Draw(rt, "sub_windows")
	case algorithms.TokenBucket, algorithms.GCRA:
		s.Burst = rapid.Int64Range(0, 4).Draw(rt, "burst")
	case algorithms.LeakyBucket:
		s.Queue = rapid.Int64Range(0, 4).Draw(rt, "queue")
	}
	return s
}

// The law: for a zone that is alone in its handlers, what it would deny is what it denies when it
// is enforced, request for request.
func TestWouldDenyEqualsDeny(t *testing.T) {
	pauses := []time.Duration{0, 0, time.Millisecond, time.Second / 2, 2 * time.Second, 9 * time.Second}
	denials := map[algorithms.Kind]int{}
	rapid.Check(t, func(rt *rapid.T) {
		s := lawfulZone(rt)
		n := rapid.IntRange(1, 60).Draw(rt, "requests")
		pause := rapid.SliceOfN(rapid.SampledFrom(pauses), n, n).Draw(rt, "pauses")
		key := rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b", "c", "d"}), n, n).Draw(rt, "keys")
		failure := ""
		synctest.Test(t, func(t *testing.T) {
			w := newTwins(t, s, nil)
			defer w.release()
			for i := range n {
				time.Sleep(pause[i])
				denied, what := w.differ(key[i], 0)
				if what != "" && failure == "" {
					failure = fmt.Sprintf("request %d, of %q: %s", i, key[i], what)
				}
				if denied {
					denials[s.Kind]++
				}
			}
		})
		if failure != "" {
			rt.Fatal(failure)
		}
	})
	for _, kind := range kinds {
		if denials[kind] == 0 {
			t.Errorf("%s denied nothing, so nothing was compared", kind)
		}
	}
}

// The law where a request is denied as others have reserved what is left, and takes a penalty: the
// bucket itself would wait for less.
func TestWouldDenyEqualsDenyOfWhatIsReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := one("reserved", 2, config.Local)
		s.Kind, s.Limits, s.CountDenied = algorithms.TokenBucket, []config.Rate{{Limit: 2, Window: time.Second}}, true
		s.CountResponses = &caddyhttp.ResponseMatcher{StatusCode: []int{http.StatusUnauthorized}}
		w := newTwins(t, s, nil)
		defer w.release()
		for i := range 3 { // no response begins
			if denied, what := w.differ("x", 0); what != "" || denied != (i == 2) {
				t.Errorf("request %d: denied %t, %s", i, denied, what)
			}
		}
	})
}

// remote is a Redis for zones of a test, with the patience that a busy machine needs.
func remote(t *testing.T, server *redistest.Server) *Redis {
	t.Helper()
	client := server.Client()
	client.Options().ContextTimeoutEnabled = true
	t.Cleanup(func() { _ = client.Close() })
	return BorrowRedis(client, RedisOptions{Namespace: "test", Timeout: patience, StrictTimeout: patience, Logger: zap.NewNop()})
}

const patience = 20 * time.Second

// start has all the zones sync until the test ends.
func start(t *testing.T, redis *Redis, all []twins) {
	t.Helper()
	redis.Replicator.Start()
	redis.Strict.SetTimeout(patience)
	for _, w := range all {
		for l := range w.each {
			l.Configure(time.Minute, redis)
		}
	}
	t.Cleanup(func() {
		for _, w := range all {
			for l := range w.each {
				l.Detach(redis)
			}
			w.release()
		}
		redis.Close()
	})
}

// The law where Redis decides and where counts are synced, within max_keys and beyond, while Redis
// is there and while it is not, by every on_redis_loss.
func TestWouldDenyEqualsDenyWithRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	redis := remote(t, server)
	var all []twins
	for _, kind := range kinds {
		for _, rate := range []config.SyncRate{config.Strict, config.SyncRate(50 * time.Millisecond)} {
			for loss, name := range config.OnRedisLossNames {
				s := config.Settings{
					Name: fmt.Sprintf("%s %s %s", kind, rate, name), Kind: kind, SubWindows: 1, SyncRate: rate, OnRedisLoss: config.OnRedisLoss(loss),
					MaxKeys: []int{2, 1000}[loss%2], CountDenied: loss >= 2,
					Limits: []config.Rate{{Limit: 3, Window: 30 * 24 * time.Hour}, {Limit: 5, Window: 60 * 24 * time.Hour}},
				}
				if kind == algorithms.LeakyBucket {
					s.Queue = 2
				}
				all = append(all, newTwins(t, s, redis))
			}
		}
	}
	start(t, redis, all)
	// is reports whether twins that sync have lost Redis, or that it is there.
	is := func(w twins, lost bool) bool {
		for l := range w.each {
			if l.Settings.SyncRate > 0 && (l.Syncer.UnavailableShards() != 0) != lost {
				return false
			}
		}
		return true
	}
	areAll := func(lost bool) func() bool {
		return func() bool { return !slices.ContainsFunc(all, func(w twins) bool { return !is(w, lost) }) }
	}
	compare := func(while string, lost bool, requests int) {
		t.Helper()
		for _, w := range all {
			for attempt, isSteady := 0, false; !isSteady; attempt++ {
				// A busy machine may lose Redis for a moment, between two twins: others are asked.
				redistest.Eventually(t, while, func() bool { return is(w, lost) })
				denials, wrong := 0, []string(nil)
				isSteady = true
				for i := range requests {
					denied, what := w.differ(fmt.Sprint(attempt, i*i%5), time.Minute)
					if what != "" {
						wrong = append(wrong, fmt.Sprintf("request %d: %s", i, what))
					}
					if denied {
						denials++
					}
					isSteady = isSteady && is(w, lost)
				}
				if !isSteady {
					continue
				}
				if len(wrong) > 0 {
					t.Errorf("%s, %s: %s", w.enforced[0].Name, while, wrong)
				}
				if allows := lost && w.enforced[0].OnRedisLoss == config.LossAllow; denials == 0 && !allows {
					t.Errorf("%s, %s: nothing was denied, so nothing was compared", w.enforced[0].Name, while)
				}
			}
		}
	}
	redistest.Eventually(t, "the sync begins", areAll(false))
	compare("redis is there", false, 20)
	server.Kill()
	redistest.Eventually(t, "the loss is noticed", areAll(true))
	compare("redis is away", true, 20)
}

// With a share, a key is in or out by its ID and the zone's name, on every node.
func TestWhichKeysAreEnforced(t *testing.T) {
	const keys = 100_000
	nodes := make([]*Zone, 2)
	for i := range nodes {
		w := newTwins(t, config.Settings{Name: "share", SubWindows: 1, SyncRate: config.Local, MaxKeys: 1000, Limits: []config.Rate{{Limit: 1, Window: 30 * 24 * time.Hour}}}, nil)
		defer w.release()
		nodes[i] = w.enforced[0]
	}
	enforce := func(share float64) {
		e := config.Enforce(share)
		nodes[0].AtRuntime.Store(&control.Rules{Enforce: &e})
		nodes[1].AtRuntime.Store(&control.Rules{Enforce: &e})
	}
	salt := sha256.Sum256([]byte("share"))
	var in []bool
	for _, share := range []float64{0, 0.25, 0.6, 1} {
		enforce(share)
		count, now := 0, make([]bool, keys)
		for i := range keys {
			address := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
			raw := fmt.Appendf(nil, "\x01%c%s", len(address.String()), address)
			now[i] = nodes[0].EnforcesRaw(raw)
			id := sha256.Sum256(raw)
			if want := float64((binary.BigEndian.Uint64(id[:8])^binary.BigEndian.Uint64(salt[:8]))%10_000) < 10_000*share; now[i] != want || nodes[1].EnforcesRaw(raw) != want {
				t.Fatalf("%s at %v: %t on one node, %t on the other, want %t", address, share, now[i], nodes[1].EnforcesRaw(raw), want)
			}
			if in != nil && in[i] && !now[i] {
				t.Fatalf("%s was in at a lower share than %v and is out", address, share)
			}
			if now[i] {
				count++
			}
		}
		if off := float64(count)/keys - share; max(off, -off) > 0.01*share {
			t.Errorf("at %v %d of %d keys are in, want that share within 1 %%", share, count, keys)
		}
		in = now
	}
	nodes[0].AtRuntime.Store(nil)
	if !nodes[0].Enforcement().IsFull() {
		t.Error("without one set at run time, a zone is not enforced as configured")
	}
}

// decide sends one request of a key, and returns the evaluation, which is not used again.
func decide(t *testing.T, zones []*Zone, key string) *Evaluation {
	t.Helper()
	e, err := Evaluate(zones, request(key), clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	if !e.Denied {
		if err := e.Enter(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// left is how many requests a zone with one limit has left for a key.
func left(z *Zone, key string) int64 {
	r := request(key)
	raw, _, _ := z.AppendKey(nil, r, reqkey.Vars(r))
	return z.AllLimits[0].Take(keys.KeyOf(raw), raw, clock.Now(), 0, 0).Remaining
}

// A queue that is not enforced delays nobody, also beside one that is.
func TestShadowQueueDelaysNobody(t *testing.T) {
	queue := func(name string, window time.Duration, share float64) config.Settings {
		return config.Settings{
			Name: name, Key: keyOfRequests, Kind: algorithms.LeakyBucket, Queue: 3, Enforce: config.Enforce(share),
			Limits: []config.Rate{{Limit: 1, Window: window}},
		}
	}
	synctest.Test(t, func(t *testing.T) {
		alone := arranged(t, queue("queue-alone", time.Minute, 0))
		began := time.Now()
		for i := range 6 {
			e := decide(t, alone, "a")
			if got, want := e.WouldDeny.Zone != "", i >= 4; e.Denied || got != want {
				t.Errorf("request %d: denied %t, would be %t, want %t: one goes at once, and three wait", i+1, e.Denied, got, want)
			}
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("requests waited %s for a queue that is not enforced", waited)
		}
		both := arranged(t, queue("queue-slow", time.Minute, 0), queue("queue-fast", time.Second, 1))
		for range 3 {
			decide(t, both, "a")
		}
		if waited := time.Since(began); waited != 2*time.Second {
			t.Errorf("three requests took %s, want the two seconds of the queue that is enforced", waited)
		}
	})
}

// Zones that are not enforced for a key come last of their class: a request that a strict zone
// denies has been through those that this node decides for, and through no strict one in shadow
// mode.
func TestShadowsAreAskedLast(t *testing.T) {
	server := redistest.Start(t)
	redis := remote(t, server)
	zones := make([]*Zone, 0, 4)
	for _, s := range []config.Settings{
		{Name: "last-strict-shadow", SyncRate: config.Strict, Enforce: config.Enforce(0)}, {Name: "last-strict", SyncRate: config.Strict},
		{Name: "last-local-shadow", SyncRate: config.Local, Enforce: config.Enforce(0)}, {Name: "last-local", SyncRate: config.Local},
	} {
		s.Key, s.SubWindows, s.MaxKeys, s.IPv4Prefix, s.IPv6Prefix = keyOfRequests, 1, 1000, 32, 64
		s.Limits = []config.Rate{{Limit: 9, Window: 30 * 24 * time.Hour}}
		z, err := NewZone(ZoneOptions{Settings: s, Redis: redis, Logger: zap.NewNop(), Once: new(warning.Once)})
		if err != nil {
			t.Fatal(err)
		}
		defer z.Release()
		zones = append(zones, z)
	}
	Arrange(zones)
	e := decide(t, zones, "a")
	var order []string
	for i := range e.checks {
		order = append(order, e.checks[i].Name)
	}
	if want := []string{"last-local", "last-local-shadow", "last-strict", "last-strict-shadow"}; fmt.Sprint(order) != fmt.Sprint(want) {
		t.Errorf("asked in the order %q, want %q", order, want)
	}
	for _, r := range e.Results() {
		if r.Shadow != (len(r.Policy.Zone) > len("last-strict")) {
			t.Errorf("the result of %s: shadow %t", r.Policy.Zone, r.Shadow)
		}
	}
}

// prepared is a request from an address, in early data or after the handshake.
func prepared(address string, early bool) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "https://example.com/", nil)
	r.RemoteAddr = address + ":1"
	r.TLS = &tls.ConnectionState{HandshakeComplete: !early}
	return caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), &caddyhttp.Server{})
}

// matcherFunc is a matcher.
type matcherFunc func(r *http.Request) (bool, error)

func (f matcherFunc) MatchWithError(r *http.Request) (bool, error) { return f(r) }

// What a request would have been denied by is recorded once all zones are asked, as a denial is: of
// one that ends with an error before, nothing is left.
func TestWouldDenyOfARequestThatFails(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	zones := arranged(t,
		config.Settings{Name: "fails-first", Key: keyOfRequests, EmptyKey: config.EmptyDeny, Enforce: config.Enforce(0), Limits: []config.Rate{{Limit: 9, Window: 30 * 24 * time.Hour}}},
		config.Settings{Name: "fails-then", Key: "all", Limits: []config.Rate{{Limit: 9, Window: 30 * 24 * time.Hour}}})
	first, err := NewZone(ZoneOptions{Settings: zones[0].Settings, Logger: zap.New(core), Once: new(warning.Once), Metrics: true})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Release()
	zones[0] = first
	failed := errors.New("failed") // by a strict zone, which is asked after all others
	zones[1].SyncRate, zones[1].Redis = config.Strict, new(Redis)
	zones[1].Matchers = caddyhttp.MatcherSets{{matcherFunc(func(*http.Request) (bool, error) { return false, failed })}}
	told := func() int { return logs.FilterMessage("rate limit exceeded, not enforced").Len() }
	if e, err := Evaluate(zones, request(""), clock.Now()); err == nil || told() != 0 {
		t.Errorf("a request that a matcher fails for: %v, %v, and %d lines, want an error and no line", e, err, told())
	}
	failed = nil
	if e := decide(t, zones, ""); e.WouldDeny.Zone != "fails-first" || told() != 1 || len(e.checks) != 1 {
		t.Errorf("the next one would be denied by %q, with %d lines and %d records, want the first zone and one of each", e.WouldDeny.Zone, told(), len(e.checks))
	}
	if e := decide(t, zones, "a"); e.WouldDeny.Zone != "" || told() != 1 {
		t.Errorf("one with a key would be denied by %q, with %d lines, want no more", e.WouldDeny.Zone, told())
	}
}
