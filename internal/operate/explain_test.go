package operate

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// kinds are all algorithms.
var kinds = []algorithms.Kind{
	algorithms.FixedWindow, algorithms.SlidingWindow, algorithms.SlidingLog, algorithms.TokenBucket, algorithms.GCRA, algorithms.LeakyBucket,
}

const keyOfRequests = "{http.request.header.K}"

// handler is the zones of one handler, arranged.
func handler(t testing.TB, redis *limits.Redis, all ...config.Settings) (zones []*limits.Zone) {
	t.Helper()
	return dressed(t, redis, func(int, *limits.ZoneOptions) {}, all...)
}

// dressed is handler with options of its own for each zone.
func dressed(t testing.TB, redis *limits.Redis, dress func(i int, o *limits.ZoneOptions), all ...config.Settings) (zones []*limits.Zone) {
	t.Helper()
	for i, s := range all {
		s.Key, s.IPv4Prefix, s.IPv6Prefix, s.EarlySync = keyOfRequests, 32, 64, true
		o := limits.ZoneOptions{Settings: s, Sweep: time.Minute, Headers: answer.IETF, Logger: zap.NewNop(), Once: new(warning.Once)}
		o.Redis = redis
		for range s.Reserve {
			o.ClassMatchers = append(o.ClassMatchers, caddyhttp.MatcherSets{{caddyhttp.MatchHeader{"K": {"a", "c"}}}})
		}
		if s.Name == "matched" {
			o.Matchers = caddyhttp.MatcherSets{{caddyhttp.MatchMethod{http.MethodPost}, caddyhttp.MatchHeader{"K": {"a"}}}, {caddyhttp.MatchHeader{"K": {"a", "b"}}}}
			o.Except = caddyhttp.MatcherSets{{caddyhttp.MatchHeader{"K": {"b"}}}}
		}
		dress(i, &o)
		z, err := limits.NewZone(o)
		if err != nil {
			t.Fatal(err)
		}
		zones = append(zones, z)
	}
	limits.Arrange(zones)
	return zones
}

// running starts a configuration of zones. The returned function ends it, and gives them up.
func running(redis *limits.Redis, namespace string, zones []*limits.Zone) (c *lifecycle.Config, stop func()) {
	c = &lifecycle.Config{Logger: zap.NewNop(), Redis: redis, Namespace: namespace}
	if redis != nil {
		c.StrictTimeout = redis.Strict.Timeout()
	}
	for _, z := range zones {
		c.Add(z)
	}
	c.Start()
	return c, func() {
		c.Stop()
		for _, z := range zones {
			z.Release()
		}
	}
}

// borrowed is a node's Redis.
func borrowed(client redis.UniversalClient, namespace string, timeout time.Duration) *limits.Redis {
	return limits.BorrowRedis(client, limits.RedisOptions{Namespace: namespace, Timeout: timeout, StrictTimeout: timeout, Logger: zap.NewNop()})
}

// redisAt is a node's Redis by a server.
func redisAt(t *testing.T, server *redistest.Server) *limits.Redis {
	client := server.Client()
	client.Options().ContextTimeoutEnabled = true
	t.Cleanup(func() { _ = client.Close() })
	return borrowed(client, "test", patience)
}

// request is a request with a header K, as a server prepares it.
func request(k string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	r.Header.Set("K", k)
	r.Header.Set("L", map[string]string{"a": "2", "b": "unlimited", "c": "many", "d": "4"}[k])
	return caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), &caddyhttp.Server{})
}

// lawfulZone is any zone.
func lawfulZone(rt *rapid.T, name string, rate []config.SyncRate, window time.Duration) config.Settings {
	s := config.Settings{
		Name: name, Kind: rapid.SampledFrom(kinds).Draw(rt, "kind"), SubWindows: 1, SyncRate: rapid.SampledFrom(rate).Draw(rt, "sync_rate"),
		MaxKeys:     rapid.SampledFrom([]int{2, 1000}).Draw(rt, "max_keys"),
		CountDenied: rapid.Bool().Draw(rt, "count_denied"),
		Enforce:     config.Enforce(rapid.SampledFrom([]float64{0, 0.5, 1, 1, 1}).Draw(rt, "enforce")),
		EmptyKey:    rapid.SampledFrom([]config.EmptyKey{config.EmptyShare, config.EmptyDeny, config.EmptySkip}).Draw(rt, "empty_key"),
		OnRedisLoss: rapid.SampledFrom([]config.OnRedisLoss{config.LossLocal, config.LossDivide, config.LossAllow, config.LossDeny}).Draw(rt, "on_redis_loss"),
		Limits:      []config.Rate{{Limit: rapid.Int64Range(0, 5).Draw(rt, "limit"), Window: window}},
	}
	if rapid.Bool().Draw(rt, "from the request") {
		s.Limits[0].From = "{http.request.header.L}"
	}
	if rapid.Bool().Draw(rt, "two limits") {
		s.Limits = append(s.Limits, config.Rate{Limit: rapid.Int64Range(1, 8).Draw(rt, "second limit"), Window: 3 * window})
	}
	switch s.Kind {
	case algorithms.SlidingWindow:
		s.SubWindows = rapid.IntRange(1, 4).Draw(rt, "sub_windows")
	case algorithms.TokenBucket, algorithms.GCRA:
		s.Burst = rapid.Int64Range(0, 4).Draw(rt, "burst")
	case algorithms.LeakyBucket:
		s.Queue = rapid.Int64Range(0, 4).Draw(rt, "queue")
	}
	if s.Kind != algorithms.LeakyBucket && !s.CountDenied && rapid.Bool().Draw(rt, "reserve") {
		s.Reserve, _ = config.Reserves([]float64{0.4})
	}
	if s.Kind != algorithms.LeakyBucket && !s.CountDenied && rapid.Bool().Draw(rt, "count_responses") {
		s.CountResponses = &caddyhttp.ResponseMatcher{StatusCode: []int{http.StatusUnauthorized}}
	}
	if n := rapid.SampledFrom([]float64{1, 1, 1, 0, 2, 5}).Draw(rt, "cost"); n != 1 {
		s.Cost = config.Cost{Terms: []config.CostTerm{{Units: &config.Amount{Number: n}}}}
		if s.CountResponses != nil && rapid.Bool().Draw(rt, "response_cost") {
			s.ResponseCost = config.ResponseCost{Terms: []config.ResponseTerm{{Header: "Cost"}}}
		}
	}
	if rapid.Bool().Draw(rt, "ban") {
		s.Ban.For = window / 2
		if n := rapid.Int64Range(0, 3).Draw(rt, "denied requests"); n > 0 {
			s.Ban.After = config.Rate{Limit: n, Window: window}
		}
	}
	return s
}

// seen counts what was compared.
type seen map[string]int

// open are requests whose responses have not begun.
type open []*limits.Held

// begin has the i-th response begin, so that it counts or not; 0 is one of which nobody knows the
// status.
func (o *open) begin(i, status int) {
	(*o)[i].Replay(limits.Response{Status: status, At: clock.Now()})
	*o = slices.Delete(*o, i, i+1)
}

// end has all responses begin that have not.
func (o *open) end() {
	for len(*o) > 0 {
		o.begin(0, http.StatusOK)
	}
}

// holds is what a look at the zones must not change.
func holds(zones []*limits.Zone) (all []string) {
	for _, z := range zones {
		for l := range z.EachWithDenials {
			all = append(all, fmt.Sprintf("%+v %d %d %d", l.Totals(), l.Table.Overflowed(), l.Table.OverflowBytes(), l.Table.Reservations().Len()))
		}
		if b := z.Bans(); b != nil {
			now := clock.Now()
			all = append(all, fmt.Sprintf("%d banned, %d noted", b.Set.Count(now), b.Shadow.Count(now)))
		}
	}
	return all
}

// differ explains a request twice and sends it, and says what differs, "" for nothing. Waits may
// differ by the time that a test takes. What has come from other nodes meanwhile is not looked at.
func differ(zones []*limits.Zone, key string, apart time.Duration, still bool, seen seen, o *open) string {
	var before []string
	if still {
		before = holds(zones)
	}
	if _, err := ExplainZones(zones, request(key)); err != nil {
		return err.Error()
	}
	said, err := ExplainZones(zones, request(key))
	if err != nil {
		return err.Error()
	}
	if still && !slices.Equal(before, holds(zones)) {
		return fmt.Sprintf("the counters were %s and are %s", before, holds(zones))
	}
	e, err := limits.Evaluate(zones, request(key), clock.Now())
	if err != nil {
		return err.Error()
	}
	defer e.Free()
	if !e.Denied {
		if h := e.Hold(); h != nil {
			*o = append(*o, h)
		}
	}
	seen[said.Decision.String()]++
	if what := differAll(zones, said, e, apart); what != "" {
		return what
	}
	for i, z := range zones {
		x := said.Zones[i]
		seen["zone "+x.Decision.String()]++
		o, ok := e.Of(z)
		if asked := x.Decision == answer.Admitted || len(x.Limits) > 0 && x.Limits[0].Decision != answer.NotAsked; ok != asked {
			return fmt.Sprintf("%s: it was asked %t, and explained as %+v", z.Name, ok, x)
		}
		if !ok {
			continue
		}
		if what := differZone(x, o, apart); what != "" {
			return z.Name + ": " + what
		}
	}
	return ""
}

// differAll compares what becomes of the request.
func differAll(zones []*limits.Zone, said Explained, e *limits.Evaluation, apart time.Duration) string {
	want := answer.Admitted
	d := e.Denial
	switch {
	case !e.Denied:
		d = answer.Denial{}
	case d.Reason == answer.Unavailable, d.Reason == answer.TooLarge, d.Reason == answer.Banned && !d.Begins:
		want = d.Reason
	default:
		want = answer.Denied
		for _, z := range zones {
			if o, ok := e.Of(z); ok && z.Name == d.Zone && o.Why == answer.Reserved {
				want = answer.Reserved
			}
		}
	}
	delay := e.Delay
	if want != answer.Admitted {
		delay = 0
	}
	if said.Decision != want || said.Zone != d.Zone || off(said.Wait, d.Wait) > apart || off(said.Delay, delay) > apart {
		return fmt.Sprintf("explained as %+v, and it was %s by %q, for %s, delayed by %s", said, want, d.Zone, d.Wait, delay)
	}
	return ""
}

// differZone compares what one zone decides.
func differZone(x ExplainedZone, o limits.Outcome, apart time.Duration) string {
	if denied := x.Decision != answer.Admitted; denied != o.Denied || x.Shadow != o.Shadow || (x.Decision == answer.Reserved) != (o.Denied && o.Why == answer.Reserved && !o.Shadow) {
		return fmt.Sprintf("explained as %+v, and it was %+v", x, o)
	}
	for i, is := range o.Results {
		l := x.Limits[i]
		if allowed := l.Decision == answer.Admitted; allowed != is.Allowed || l.After != is.Remaining || !allowed && off(l.Wait, is.RetryAfter) > apart {
			return fmt.Sprintf("the limit %s explained as %+v, and it was %+v", l.Window, l, is)
		}
		if l.Used < 0 || l.Remaining < 0 {
			return fmt.Sprintf("the limit %s explained as %+v", l.Window, l)
		}
	}
	return ""
}

func off(seconds float64, d time.Duration) time.Duration {
	return (time.Duration(seconds*float64(time.Second)) - d).Abs()
}

// A lawfulRun is requests to zones that decide in memory.
type lawfulRun struct {
	zones  []config.Settings
	pause  []time.Duration // before each request
	key    []string
	begins []int // the status of a response that begins then, -1 for none
	// set are limits of keys that are set at run time.
	set map[string]string
}

// lawfulWindow is the shortest window of a lawfulRun. A configuration has work each second: hours
// of that take the race detector minutes.
const lawfulWindow = 5 * time.Minute

func drawLawfulRun(rt *rapid.T) lawfulRun {
	const window = lawfulWindow
	run := lawfulRun{set: map[string]string{}}
	for _, name := range []string{"matched", "b", "c"}[rapid.IntRange(0, 2).Draw(rt, "zones"):] {
		run.zones = append(run.zones, lawfulZone(rt, name, []config.SyncRate{config.Local}, window))
	}
	pauses := []time.Duration{0, 0, time.Millisecond, time.Second / 2, window / 5, 9 * window / 10}
	n := rapid.IntRange(1, 40).Draw(rt, "requests")
	run.pause = rapid.SliceOfN(rapid.SampledFrom(pauses), n, n).Draw(rt, "pauses")
	run.key = rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b", "c", "d"}), n, n).Draw(rt, "keys")
	run.begins = rapid.SliceOfN(rapid.SampledFrom([]int{-1, -1, 0, 200, 401}), n, n).Draw(rt, "responses")
	for range rapid.IntRange(0, 3).Draw(rt, "overrides") {
		run.set[rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "overridden")] = rapid.SampledFrom(overridden(window)).Draw(rt, "by")
	}
	return run
}

// compare sends the requests, each explained before, and says what differs, "" for nothing.
func (run *lawfulRun) compare(t *testing.T, seen seen) (failure string) {
	synctest.Test(t, func(t *testing.T) {
		zones := handler(t, nil, run.zones...)
		_, stop := running(nil, "", zones)
		defer stop()
		defer override(t, nil, overrides(zones, run.set))()
		var o open
		for i, key := range run.key {
			time.Sleep(run.pause[i])
			synctest.Wait()
			if what := differ(zones, key, 2*time.Millisecond, true, seen, &o); what != "" && failure == "" {
				failure = fmt.Sprintf("request %d, of %q: %s", i, key, what)
			}
			if run.begins[i] >= 0 && len(o) > 0 {
				o.begin(i%len(o), run.begins[i])
			}
		}
		o.end()
		for _, z := range zones {
			for l := range z.Each {
				if n := l.Table.Reservations().Len(); n != 0 && failure == "" {
					failure = fmt.Sprintf("%s: %d keys have reservations when all responses have begun", z.Name, n)
				}
			}
		}
	})
	return failure
}

// The law: what is explained is what becomes of the very next request, and nothing has changed,
// for zones that decide in memory. Fixed runs follow the random ones until each decision was seen.
func TestExplainedEqualsTheNextDecision(t *testing.T) {
	seen := seen{}
	rapid.Check(t, func(rt *rapid.T) {
		run := drawLawfulRun(rt)
		if failure := run.compare(t, seen); failure != "" {
			rt.Fatal(failure)
		}
	})
	fixed := rapid.Custom(drawLawfulRun)
	for _, d := range []string{"admitted", "denied", "reserved", "banned", "too_large", "zone would_deny", "zone skipped"} {
		for i := 0; seen[d] == 0; i++ {
			if i == 500 {
				t.Fatalf("nothing was %s, so not all was compared: %v", d, seen)
			}
			run := fixed.Example(i)
			if failure := run.compare(t, seen); failure != "" {
				t.Fatalf("fixed run %d: %s\n%+v", i, failure, run)
			}
		}
	}
}

// The law holds where there is no room for another ban: a denied request begins none then.
//
// bubble: compare begins one.
func TestExplainedWithoutRoomForABan(t *testing.T) {
	s := config.Settings{Name: "z", SubWindows: 1, SyncRate: config.Local, MaxKeys: 1, Limits: []config.Rate{{Limit: 1, Window: time.Minute}}}
	s.Ban.For = time.Hour
	run := lawfulRun{
		zones: []config.Settings{s},
		pause: []time.Duration{0, 0, 0, 10 * time.Minute, 0, 0},
		// b gets the counter of a, which is still banned.
		key:    []string{"a", "a", "a", "b", "b", "b"},
		begins: []int{-1, -1, -1, -1, -1, -1},
	}
	seen := seen{}
	if failure := run.compare(t, seen); failure != "" {
		t.Error(failure)
	}
	if seen["admitted"] != 2 || seen["denied"] != 3 || seen["banned"] != 1 {
		t.Errorf("saw %v, want a banned, and b denied twice", seen)
	}
}

// overridden are what an operator may set. A rate names the second limit of a lawfulZone.
func overridden(window time.Duration) []string {
	return []string{"0", "3", "1000", "2/" + config.WindowText(3*window), control.Unlimited, control.Deny}
}

// overrideLasts is how long an override holds that override sets.
const overrideLasts = time.Hour

// overrides are changes that set limits of keys in all zones.
func overrides(zones []*limits.Zone, set map[string]string) (all []control.Change) {
	for _, z := range zones {
		for _, key := range slices.Sorted(maps.Keys(set)) {
			k, _ := z.KeyOf(request(key))
			all = append(all, control.Change{Target: control.Target{Zone: z.Name, Key: &k.ID}, Body: control.Body{Limit: set[key]}, For: overrideLasts})
		}
	}
	return all
}

// override sets limits of keys at run time, until the returned function is called or overrideLasts
// is over.
func override(t *testing.T, redis *limits.Redis, all []control.Change) (remove func()) {
	t.Helper()
	record, ends := limits.ControlOf(redis, ""), clock.Now()+int64(overrideLasts)
	change := func() {
		if len(all) == 0 {
			return
		}
		if _, err := record.ChangeAll(t.Context(), all); err != nil && (clock.Now() < ends || !errors.Is(err, control.ErrNone)) {
			t.Errorf("setting %v: %v", all, err)
		}
	}
	change()
	return func() {
		for i := range all {
			all[i].Body.Limit = ""
		}
		change()
	}
}

// The law holds as well when an override has ended by itself, which then nobody can remove.
func TestExplainedWhenAnOverrideHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := config.Settings{Name: "z", SubWindows: 1, SyncRate: config.Local, MaxKeys: 10, Limits: []config.Rate{{Limit: 1, Window: time.Minute}}}
		zones := handler(t, nil, s)
		_, stop := running(nil, "", zones)
		defer stop()
		remove := override(t, nil, overrides(zones, map[string]string{"a": control.Deny}))
		for _, want := range []string{"denied", "admitted"} {
			seen := seen{}
			var o open
			if what := differ(zones, "a", 2*time.Millisecond, true, seen, &o); what != "" || seen[want] == 0 {
				t.Errorf("it was %v, want %s %s", seen, want, what)
			}
			time.Sleep(overrideLasts + time.Minute)
		}
		remove()
	})
}

// patience is what a busy machine needs.
const patience = 20 * time.Second

// syncedWindow is the window of syncedHandlers.
const syncedWindow = 30 * 24 * time.Hour

// syncedHandlers are handlers with zones of all kinds that Redis has a part in.
func syncedHandlers(t *testing.T, redis *limits.Redis) (handlers [][]*limits.Zone) {
	t.Helper()
	draw := rapid.Custom(func(rt *rapid.T) []config.Settings {
		var all []config.Settings
		for i := range rapid.IntRange(1, 3).Draw(rt, "zones") {
			all = append(all, lawfulZone(rt, fmt.Sprint("zone ", i), []config.SyncRate{config.Strict, config.SyncRate(50 * time.Millisecond)}, syncedWindow))
		}
		return all
	})
	for i := range 60 {
		all := draw.Example(i)
		for j := range all {
			all[j].Name = fmt.Sprint(i, " ", all[j].Name)
		}
		handlers = append(handlers, handler(t, redis, all...))
	}
	return handlers
}

// The law where Redis decides and where counts are synced, while Redis is there and while it is
// not. Redis sees nothing of the explaining but of zones that it decides for.
func TestExplainedEqualsTheNextDecisionWithRedis(t *testing.T) {
	server := redistest.Start(t)
	redis := redisAt(t, server)
	seen, handlers := seen{}, syncedHandlers(t, redis)
	c, stop := running(redis, "", slices.Concat(handlers...))
	defer stop()
	lost := func(want bool) func() bool {
		return func() bool {
			for l := range c.Each {
				if l.Settings.SyncRate > 0 && l.Syncer.IsUnavailable([]byte("a")) != want {
					return false
				}
			}
			return true
		}
	}
	compare := func(while string, requests int) {
		t.Helper()
		for i, zones := range handlers {
			var o open
			for j := range requests {
				if what := differ(zones, string(rune('a'+j*j%5)), time.Minute, false, seen, &o); what != "" {
					t.Errorf("%s, handler %d, request %d: %s", while, i, j, what)
					break
				}
				if j%3 == 2 && len(o) > 1 {
					o.begin(1, []int{0, http.StatusUnauthorized, http.StatusOK}[(i+j/3)%3])
				}
			}
			o.end()
		}
	}
	redistest.Eventually(t, "the sync begins", lost(false))
	compare("redis is there", 12)
	set := overridden(syncedWindow)
	var all []control.Change
	for i, zones := range handlers {
		all = append(all, overrides(zones, map[string]string{"a": set[i%len(set)], "b": set[i/len(set)%len(set)]})...)
	}
	override(t, redis, all)
	compare("redis is there, with overrides", 12)
	server.Kill()
	killed := clock.Now()
	redistest.Eventually(t, "the loss is noticed", lost(true))
	redistest.Eventually(t, "nothing is remembered of what Redis denied", func() bool { return clock.Now()-killed > int64(time.Second) })
	compare("redis is away", 12)
	for _, d := range []string{"admitted", "denied", "unavailable", "reserved", "zone not_asked", "zone would_deny", "zone skipped"} {
		if seen[d] == 0 {
			t.Errorf("nothing was %s, so not all was compared: %v", d, seen)
		}
	}
}

// A key that is empty and shared is there, and empty; of one known by its ID nothing is said.
func TestExplainAnEmptyKey(t *testing.T) {
	zones := handler(t, nil, config.Settings{Name: "z", SubWindows: 1, SyncRate: config.Local, MaxKeys: 10, EmptyKey: config.EmptyShare, Limits: []config.Rate{{Limit: 3, Window: 30 * 24 * time.Hour}}})
	defer zones[0].Release()
	e, err := limits.Evaluate(zones, request(""), clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	e.Free()
	said, err := ExplainZones(zones, request(""))
	if z := said.Zones[0]; err != nil || z.Key == nil || *z.Key != "" || z.ID == "" {
		t.Errorf("%+v, %v; want an empty key", z, err)
	}
	k, _ := zones[0].KeyOf(request(""))
	if byID, ok, err := ExplainKey(zones[0], limits.KeyOfID(k.ID), nil); err != nil || !ok || byID.Zones[0].Key != nil {
		t.Errorf("by ID %+v, %t, %v; want no key", byID, ok, err)
	}
}

// A zone that skips a request as its limit is unlimited says that, and not what it would do without
// Redis: Redis is there.
func TestExplainAnUnlimitedRequestWithRedis(t *testing.T) {
	for _, loss := range []config.OnRedisLoss{config.LossLocal, config.LossDivide, config.LossAllow, config.LossDeny} {
		for _, rate := range []config.SyncRate{config.Strict, rarely} {
			for _, share := range []float64{0, 1} {
				s := strictZone("unlimited", algorithms.FixedWindow, 3, time.Hour)
				s.Limits[0].From, s.SyncRate, s.OnRedisLoss, s.Enforce = "{http.request.header.L}", rate, loss, config.Enforce(share)
				recallers(t, 1, plain, []config.Settings{s}, func(t *testing.T, nodes []*recaller) {
					said, err := ExplainZones(nodes[0].zones, withLimit("unlimited"))
					if err != nil {
						t.Fatal(err)
					}
					if z := said.Zones[0]; z.Decision != answer.Skipped || z.OnRedisLoss != "" || len(z.Mismatch) != 1 {
						t.Errorf("%s, sync_rate %s, enforced for %v: %+v; want skipped, as every limit is unlimited", loss, rate, share, z)
					}
				})
			}
		}
	}
}

// A zone that doesn't limit a request says which matcher did not match.
func TestWhichMatcherDidNotMatch(t *testing.T) {
	zones := handler(t, nil, config.Settings{Name: "matched", SubWindows: 1, SyncRate: config.Local, MaxKeys: 10, Limits: []config.Rate{{Limit: 3, Window: 30 * 24 * time.Hour}}})
	defer zones[0].Release()
	for key, want := range map[string][]string{"a": nil, "b": {"except"}, "c": {"method", "header"}} {
		said, err := ExplainZones(zones, request(key))
		if err != nil || !slices.Equal(said.Zones[0].Mismatch, want) || (said.Zones[0].Decision == answer.Skipped) != (want != nil) {
			t.Errorf("%s: %+v, %v; want %v", key, said, err, want)
		}
	}
}

// What this node decided alone while Redis was away counts when it is back, also as long as Redis
// has not been told: a request would tell it first.
func TestExplainCountsWhatRedisIsStillToLearn(t *testing.T) {
	server := redistest.Start(t)
	redis := redisAt(t, server)
	var all []config.Settings
	for _, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA, algorithms.SlidingLog} {
		all = append(all, strictZone(kind.String(), kind, 3, syncedWindow))
	}
	zones := handler(t, redis, all...)
	_, stop := running(redis, "", zones)
	defer stop()
	server.Kill()
	for _, z := range zones {
		for range 3 {
			e, err := limits.Evaluate([]*limits.Zone{z}, request("a"), clock.Now())
			if err != nil || e.Denied {
				t.Fatalf("%s: while redis is away: %v, %v", z.Name, e, err)
			}
			e.Free()
		}
	}
	server.Restart()
	redistest.Eventually(t, "redis decides again", func() bool { return redis.Strict.Status().Open == 0 })
	for _, z := range zones {
		said, err := ExplainZones([]*limits.Zone{z}, request("a"))
		if err != nil || said.Decision != answer.Denied || said.Zones[0].Limits[0].Used != 3 {
			t.Errorf("%s: %+v, %v; want denied, as 3 of 3 are used", z.Name, said, err)
		}
	}
}

// A zone is explained by the number that its own matchers have found, whatever those of the next
// zone find.
func TestExplainsWhatItsOwnMatchersFound(t *testing.T) {
	of := func(name, from, pattern string) config.Settings {
		return config.Settings{Name: name + pattern, SubWindows: 1, SyncRate: config.Local, MaxKeys: 10, Limits: []config.Rate{{Limit: 9, Window: 30 * 24 * time.Hour, From: from}}}
	}
	zones := handler(t, nil, of("brings", "{http.regexp.1}", "^/n/([0-9]+)"), of("beside", "", "^/n/[0-9]+/(.*)"))
	for _, z := range zones {
		defer z.Release()
		_, pattern, _ := strings.Cut(z.Name, "^")
		m := caddyhttp.MatchPathRE{MatchRegexp: caddyhttp.MatchRegexp{Pattern: "^" + pattern}}
		if err := m.Provision(caddy.Context{}); err != nil {
			t.Fatal(err)
		}
		z.Matchers = caddyhttp.MatcherSets{{&m}}
	}
	r := request("a")
	r.URL.Path = "/n/5/2"
	said, err := ExplainZones(zones, r)
	if err != nil || said.Zones[0].Limits[0].Limit != 5 {
		t.Errorf("%+v, %v; want a limit of 5", said, err)
	}
}
