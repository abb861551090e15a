package operate

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	caddymap "github.com/caddyserver/caddy/v2/modules/caddyhttp/map"
	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/limits"
)

// twinKeys are what keys are made of: a header, a part of the path, what an expression captures, a
// variable that map makes, and the lines of two headers.
var twinKeys = []string{keyOfRequests, "{http.request.orig_uri.path.1}", "{http.regexp.who.1}", "{tenant}", "{http.request.header.K} {http.request.header.L}"}

// A twinZone is any zone, and which requests it is for.
type twinZone struct {
	config.Settings
	key     string
	matched bool
}

// drawTwin draws a zone with any two or more options. A handler with several strict zones ends with
// the first denial, and the others don't hear of the request: there denied requests count, and
// begin bans, only where they were denied; and a bucket drains by the limit of the request that
// asks; and a place in a queue stays taken when slots of another queue deny. So several zones have
// none of that. Where Redis said last that a limit is spent, that denies, and begins a ban, before
// a place is asked for: so slots go without bans. By its name a zone has its slots on a node, and
// the keys that it is enforced for where it is for some: so the twins have one name, but where they
// have slots, and these are enforced for all keys or none.
//
// bubble: its requests are sent there.
func drawTwin(rt *rapid.T, name string, several bool) twinZone {
	z := twinZone{Settings: lawfulZone(rt, name, []config.SyncRate{config.Local}, 20*time.Second)}
	if z.Kind == algorithms.SlidingLog { // which counts by sixteenths in strict
		z.Kind = algorithms.FixedWindow
	}
	z.MaxKeys, z.CountDenied = 1000, z.CountDenied && !several
	if several && !z.Kind.Traits().Windowed {
		z.Limits[0].From = ""
	}
	z.key, z.matched = rapid.SampledFrom(twinKeys).Draw(rt, "key"), rapid.IntRange(0, 3).Draw(rt, "matched") == 0
	if !(several && z.Kind.Traits().Queues) && rapid.IntRange(0, 2).Draw(rt, "has concurrent") == 0 {
		z.Concurrent = rapid.Int64Range(1, 3).Draw(rt, "concurrent")
		z.Enforce = config.Enforce(rapid.SampledFrom([]float64{0, 1, 1}).Draw(rt, "enforce all"))
	}
	z.Ban = config.Ban{}
	if !several && z.Concurrent == 0 && rapid.IntRange(0, 2).Draw(rt, "has ban") == 0 {
		z.Ban.For = rapid.SampledFrom([]time.Duration{3 * time.Second, time.Minute}).Draw(rt, "ban")
		z.Ban.After = rapid.SampledFrom([]config.Rate{{}, {Limit: 2, Window: 10 * time.Second}}).Draw(rt, "ban after")
	}
	return z
}

// dress sets what is no setting.
func (z *twinZone) dress(o *limits.ZoneOptions) {
	o.Key = z.key
	set := caddyhttp.MatcherSet{}
	if strings.Contains(z.key, "regexp") {
		m := &caddyhttp.MatchPathRE{MatchRegexp: caddyhttp.MatchRegexp{Name: "who", Pattern: "^/k/(.*)$"}}
		if err := m.Provision(caddy.Context{}); err != nil {
			panic(err)
		}
		set = append(set, m)
	}
	if z.matched {
		set = append(set, caddyhttp.MatchHeader{"K": {"a", "b", "c"}})
		o.Except = caddyhttp.MatcherSets{{caddyhttp.MatchHeader{"K": {"b"}}}}
	}
	if len(set) > 0 {
		o.Matchers = caddyhttp.MatcherSets{set}
	}
}

// tenants is what map makes of a header: two of them are one.
var tenants = sync.OnceValue(func() *caddymap.Handler {
	m := &caddymap.Handler{
		Source: keyOfRequests, Destinations: []string{"{tenant}"}, Defaults: []string{""},
		Mappings: []caddymap.Mapping{{Input: "a", Outputs: []any{"red"}}, {Input: "b", Outputs: []any{"red"}}, {Input: "c", Outputs: []any{"blue"}}},
	}
	if err := m.Provision(caddy.Context{}); err != nil {
		panic(err)
	}
	return m
})

// A twinStep is a request, and what happens before and after it.
type twinStep struct {
	pause time.Duration
	key   string
	// lines are more lines of the header K. early is set in early data.
	lines []string
	early bool
	// change is what an operator says before of the key: reset, or an override; "" for nothing.
	change string
	// begins is the status of an earlier response that begins afterwards, -1 for none.
	begins int
}

func drawStep(rt *rapid.T) (s twinStep) {
	s.pause = rapid.SampledFrom([]time.Duration{0, 0, 0, time.Second / 2, 4 * time.Second, 18 * time.Second}).Draw(rt, "pause")
	s.key = rapid.SampledFrom([]string{"", "a", "a", "b", "c", "d"}).Draw(rt, "key")
	s.lines = rapid.SampledFrom([][]string{nil, nil, nil, {s.key}, {"other"}}).Draw(rt, "lines")
	s.early = rapid.IntRange(0, 5).Draw(rt, "early") == 0
	s.change = rapid.SampledFrom([]string{"", "", "", "", "", "", "", "", "reset", "3", "0", control.Unlimited, control.Deny}).Draw(rt, "change")
	s.begins = rapid.SampledFrom([]int{-1, -1, 0, 200, 401}).Draw(rt, "begins")
	return s
}

// request is the request of a step, as the zones of a handler get it.
func (s *twinStep) request() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "http://example.com/k/"+s.key, nil)
	r.Header["K"] = append([]string{s.key}, s.lines...)
	r.Header.Set("L", map[string]string{"a": "2", "b": "unlimited", "c": "many", "d": "4"}[s.key])
	if s.early {
		r.TLS = &tls.ConnectionState{}
	}
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), &caddyhttp.Server{})
	err := tenants().ServeHTTP(nil, r, caddyhttp.HandlerFunc(func(_ http.ResponseWriter, mapped *http.Request) error {
		r = mapped
		return nil
	}))
	if err != nil {
		panic(err)
	}
	return r
}

// A twin is one of two handlers with the same zones.
type twin struct {
	zones  []*limits.Zone
	record *control.Control
	opened open
}

// A twinAnswer is what was decided of a request: in all, in each zone, and how long the client is
// to wait. open is how many responses have not begun then.
type twinAnswer struct {
	all  string
	each []string
	wait time.Duration
	open int
}

// change has an operator change something of the key of a step, in all zones.
func (w *twin) change(t *testing.T, s *twinStep) {
	for _, z := range w.zones {
		ok, excepted, _ := z.Selects(s.request(), nil)
		k, none := z.KeyOf(s.request())
		target := control.Target{Zone: z.Name, Key: &k.ID}
		var err error
		switch {
		case s.change == "" || !ok || excepted || none:
		case s.change == "reset":
			_, _, err = w.record.Reset(t.Context(), control.Change{Target: target, For: time.Hour})
		default:
			_, err = w.record.Change(t.Context(), control.Change{Target: target, Body: control.Body{Limit: s.change}, For: 15 * time.Second})
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// sorted returns the zones by name: a handler has them in the order of its own.
func (w *twin) sorted() []*limits.Zone {
	return slices.SortedFunc(slices.Values(w.zones), func(a, b *limits.Zone) int { return strings.Compare(a.Name, b.Name) })
}

// ask sends the request of a step.
func (w *twin) ask(t *testing.T, s *twinStep) (a twinAnswer) {
	e, err := limits.Evaluate(w.zones, s.request(), clock.Now())
	if err != nil {
		t.Error(err)
		return a
	}
	defer e.Free()
	if a.all = fmt.Sprint("denied ", e.Denied); len(w.zones) == 1 { // else of who denied
		a.all += fmt.Sprint(" as ", e.Denial.Reason)
	}
	for _, z := range w.sorted() {
		o, asked := e.Of(z)
		said := ""
		if asked {
			said = fmt.Sprint("would ", o.Denied, ", shadow ", o.Shadow, ", reserved ", o.Why == answer.Reserved)
		}
		for _, r := range o.Results {
			if e.Denied && !o.Denied && len(w.zones) > 1 {
				break // Redis gets back what was taken with the key's next call
			}
			if o.Denied && len(o.Results) > 1 { // the rest is as old as the denial
				said += fmt.Sprint(", of ", r.Size)
				continue
			}
			said += fmt.Sprintf(", %d of %d", r.Remaining, r.Size)
		}
		a.each = append(a.each, said)
	}
	if h := e.Hold(); h != nil && !e.Denied {
		w.opened = append(w.opened, h)
	}
	a.wait, a.open = e.Denial.Wait, len(w.opened)
	return a
}

// One node that has a Redis to itself decides in strict mode as it would without one, whatever
// options of a zone meet: request by request, and wait by wait.
func TestStrictDecidesAsOneNodeAlone(t *testing.T) {
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		// By it, it is told for whom a share is enforced.
		number := rapid.IntRange(1, 1000).Draw(rt, "number")
		var all []twinZone
		several := rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(rt, "zones")
		for i := range several {
			all = append(all, drawTwin(rt, fmt.Sprint("twin ", number, " ", i), several > 1))
		}
		steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 40).Draw(rt, "steps")
		isBucket := func(z twinZone) bool { return !z.Kind.Traits().Windowed }
		for i := range steps {
			if s := &steps[i]; several > 1 && s.change == "3" && slices.ContainsFunc(all, isBucket) {
				s.change = "" // it would drain by that from a request on that it doesn't hear of
			}
		}
		var said [2][]twinAnswer
		for i := range said {
			synctest.Test(t, func(t *testing.T) { said[i] = takeTwin(t, fmt.Sprint("run ", run), i == 1, all, steps) })
		}
		gaveBack := make([]bool, several)
		for i := range steps {
			if failure := compareAnswers(all, gaveBack, said[0][i], said[1][i]); failure != "" {
				rt.Fatalf("request %d, %+v: %s", i, steps[i], failure)
			}
		}
	})
}

// newTwin makes a handler of zones that decides alone, or one for which Redis does.
func newTwin(t *testing.T, redis *limits.Redis, namespace string, all []twinZone) *twin {
	var compiled []config.Settings
	for _, z := range all {
		if redis != nil {
			if z.SyncRate = config.Strict; z.Concurrent > 0 {
				z.Name += " by Redis"
			}
		}
		compiled = append(compiled, z.Settings)
	}
	w := &twin{record: limits.ControlOf(redis, namespace)}
	w.zones = dressed(t, redis, func(j int, o *limits.ZoneOptions) { all[j].dress(o); o.Namespace = namespace }, compiled...)
	return w
}

// takeTwin takes one of the handlers through the steps.
func takeTwin(t *testing.T, namespace string, byRedis bool, all []twinZone, steps []twinStep) (said []twinAnswer) {
	forward := func(time.Duration) {}
	var redis *limits.Redis
	if byRedis {
		server, client := inMemory()
		defer server.Close()
		defer client.Close()
		redis, forward, namespace = borrowed(client, namespace+" by Redis", time.Second), server.FastForward, ""
		defer redis.Close()
	}
	w := newTwin(t, redis, namespace, all)
	_, stop := running(redis, namespace, w.zones)
	defer stop()
	defer w.opened.end()
	for i := range steps {
		s, began := &steps[i], time.Now()
		time.Sleep(s.pause)
		w.change(t, s)
		if s.change != "" { // what is spent at the instant of a reset is forgiven
			time.Sleep(time.Millisecond)
		}
		forward(time.Since(began))
		synctest.Wait()
		said = append(said, w.ask(t, s))
		synctest.Wait()
		if s.begins >= 0 && len(w.opened) > 0 {
			w.opened.begin(i%len(w.opened), s.begins)
			synctest.Wait()
		}
	}
	return said
}

// compareAnswers returns what differs between the two answers to a request, "" for nothing. Redis
// is not asked for a zone once another one has denied: such a zone says nothing there, and its wait
// is that which Redis told last. So the client may be told a shorter one, and a longer one by zones
// that have given a unit back since, noted in gaveBack, or have no free place, where the limits are
// not asked alone, and by a sliding_log, which a node knows by sixteenths of the window.
func compareAnswers(all []twinZone, gaveBack []bool, alone, by twinAnswer) string {
	const rounding = 2 * time.Millisecond
	less, more := rounding, rounding
	same := alone.all == by.all && alone.open == by.open
	for i := range alone.each {
		denied := strings.Contains(alone.each[i], "would true")
		switch {
		case denied && !strings.Contains(alone.each[i], " of ") && strings.HasPrefix(by.each[i], alone.each[i]) && by.each[i] != "":
			less, more = time.Hour, time.Hour // the last word denies it before a place is asked for
			continue
		case by.each[i] != "":
			same = same && alone.each[i] == by.each[i]
			gaveBack[i] = gaveBack[i] || !denied && strings.HasPrefix(by.all, "denied true")
			continue
		case gaveBack[i] || denied && !strings.Contains(alone.each[i], " of "):
			more = time.Hour
		case all[i].Kind == algorithms.SlidingLog:
			more = max(more, all[i].LongestWindow()/16+rounding)
		}
		if denied {
			less = time.Hour
		}
	}
	if longer := by.wait - alone.wait; !same || longer > more || -longer > less {
		return fmt.Sprintf("alone %+v, by Redis %+v", alone, by)
	}
	return ""
}
