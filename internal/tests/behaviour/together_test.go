package behaviour_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/websocket"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// guessing is a site whose handler answers 401 to a wrong password. Others wait in it until they
// are told a status.
type guessing struct {
	s            *sitetest.Site
	under, ended chan struct{}
	begin        chan int
}

func guesses(s *sitetest.Site) *guessing {
	g := &guessing{s: s, under: make(chan struct{}), ended: make(chan struct{}), begin: make(chan int)}
	s.Next = func(w http.ResponseWriter, r *http.Request) error {
		if r.Header.Get("Password") == "wrong" {
			w.WriteHeader(http.StatusUnauthorized)
			return nil
		}
		g.under <- struct{}{}
		w.WriteHeader(<-g.begin)
		return nil
	}
	return g
}

// hold sends requests from an address that wait in the handler.
func (g *guessing) hold(ip string, count int, change ...func(*http.Request)) {
	g.s.T.Helper()
	for range count {
		go func() {
			g.s.Get(ip, change...)
			g.ended <- struct{}{}
		}()
		select {
		case <-g.under:
		case <-g.ended:
			g.s.T.Fatalf("%s: a request has not reached the handler", ip)
		}
	}
}

// end has as many of them answered with a status.
func (g *guessing) end(count, status int) {
	for range count {
		g.begin <- status
		<-g.ended
	}
}

// reached sends wrong guesses and wants so many to reach the handler. What is denied then is denied
// by what is only reserved, or for good.
func (g *guessing) reached(what string, count, want int, reserved bool, change ...func(*http.Request)) {
	g.s.T.Helper()
	got := 0
	var last sitetest.Reply
	for range count {
		if last = g.s.Get("203.0.113.9", append(change, wrongPassword)...); last.Status == http.StatusUnauthorized {
			got++
		}
	}
	if got != want {
		g.s.T.Errorf("%s: %d of %d guesses reached the handler, want %d", what, got, count, want)
	}
	if got < count && (last.Header.Get("Retry-After") == "1") != reserved {
		g.s.T.Errorf("%s: denied with Retry-After %s, want a denial by what is reserved: %v", what, last.Header.Get("Retry-After"), reserved)
	}
}

// Keys beyond max_keys reserve units as others do: what doesn't count is refunded there.
func TestReservationsBeyondMaxKeys(t *testing.T) {
	for _, algorithm := range settledAlgorithms {
		t.Run(algorithm, func(t *testing.T) {
			g := guesses(sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("beyond", "limit 3/30d\nkey {http.request.header.K}\nmax_keys 1\ncount_responses 401\nalgorithm "+algorithm)))
			g.reached("a key with a counter", 1, 1, false, sitetest.Header("K", "first"))
			beyond := sitetest.Header("K", "beyond")
			g.hold("203.0.113.9", 3, beyond)
			g.reached("beside three", 1, 0, true, beyond)
			g.end(3, http.StatusOK)
			g.reached("after three that don't count", 5, 3, false, beyond)
			g.s.End()
		})
	}
}

// A request waits in the queue, has its place meanwhile, and is then slowed.
func TestConcurrentBandwidthAndAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("three", "limit 1/10s\nalgorithm leaky_bucket\nqueue 5\nconcurrent 2\nbandwidth 1kB/s"))
		defer s.End()
		s.Next = writes(20_000, 1000)
		began := time.Now()
		var took [2]time.Duration
		var wg sync.WaitGroup
		for i := range took {
			wg.Go(func() {
				if a := s.Get("1.2.3.4"); a.Status != http.StatusOK || len(a.Body) != 20_000 {
					t.Errorf("%d with %d bytes", a.Status, len(a.Body))
				}
				took[i] = time.Since(began)
			})
			synctest.Wait()
		}
		s.Admits("1.2.3.4", 1, 0) // one is sent, one waits
		if n := inUse(t, "three"); n != 2 {
			t.Errorf("%d have a place, want 2", n)
		}
		wg.Wait()
		// The first one alone has 10 s, then both share the rate until it has 20 kB.
		if took[0] < 29*time.Second || took[0] > 31*time.Second || took[1] < 39*time.Second || took[1] > 41*time.Second {
			t.Errorf("they took %v, want 30 s and 40 s", took)
		}
		if n := inUse(t, "three"); n != 0 || bandwidthOf(t, "three").Open != 0 {
			t.Errorf("%d have a place at the end, and %+v", n, bandwidthOf(t, "three"))
		}
	})
}

// A together is a zone with ban, concurrent and count_responses, and a model of it. Requests of a
// few keys come, run and end in all ways; bans begin and end, and there are resets and reloads. One
// goroutine does all that.
type together struct {
	t      *testing.T
	random *rand.Rand
	block  string
	app    *ratelimit.App
	s      *sitetest.Site
	// exact is set where the model knows each decision: else it says what may not be admitted.
	exact bool
	// crowded is set where a key beyond max_keys may get a counter of its own, which begins at 0.
	crowded bool
	ban     time.Duration
	// window and denied are the windows of the limit, and of denials.
	window, denied time.Duration
	keys           []*togetherKey
	runs           []*togetherRun
	// entered has the requests that have reached the handler.
	entered chan *togetherRun
	wg      sync.WaitGroup
	seen    map[string]int
}

func newTogether(t *testing.T, seed uint64, app *ratelimit.App, options string, seen map[string]int) *together {
	m := &together{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), app: app, seen: seen, ban: 7 * time.Minute,
		window: time.Hour, denied: 20 * time.Minute, entered: make(chan *togetherRun),
	}
	m.crowded = strings.Contains(options, "max_keys")
	keys := 4
	if app.Redis != nil {
		m.ban, keys = 100*time.Millisecond, 3
		m.window, m.denied = 720*time.Hour, 720*time.Hour
	}
	for i := range keys {
		m.keys = append(m.keys, &togetherKey{name: fmt.Sprint(i), denials: make(map[int64]int)})
	}
	m.block = sitetest.ZoneBlock("together", fmt.Sprintf("key {http.request.header.K}\nlimit %d/%v\nconcurrent %d\nban %v after %d/%v\ncount_responses 401 403\n%s",
		togetherLimit, m.window, togetherPlaces, m.ban, togetherAfter, m.denied, options))
	m.load()
	return m
}

const (
	togetherLimit  = 4
	togetherPlaces = 3
	togetherAfter  = 2
)

// togetherKey is what the model knows of a key.
type togetherKey struct {
	name    string
	window  int64
	settled int // in the window
	running int
	denials map[int64]int
	until   int64 // of the ban
	history []string
}

// togetherRun is a request in its handler.
type togetherRun struct {
	key      *togetherKey
	window   int64 // of its unit; -1 where it is settled or forgiven
	leave    context.CancelFunc
	do       chan string
	did      chan struct{}
	answered chan sitetest.Reply
}

type togetherID struct{}

// togethers numbers what is run: resets of one are not those of another, which begins at the same
// time by its own clock.
var togethers atomic.Int64

// load replaces the configuration.
func (m *together) load() {
	s := sitetest.NewSite(m.t, m.app, m.block)
	s.Next = m.handle
	if m.s != nil {
		m.s.End()
	}
	m.s = s
	for _, k := range m.keys {
		k.history = append(k.history, "reload")
	}
}

// handle runs a request until it is told how to end.
func (m *together) handle(w http.ResponseWriter, r *http.Request) error {
	run := r.Context().Value(togetherID{}).(*togetherRun)
	m.entered <- run
	for what := range run.do {
		switch what {
		case "wrong":
			w.WriteHeader(http.StatusUnauthorized)
		case "right":
			w.WriteHeader(http.StatusOK)
		case "twice":
			w.WriteHeader(http.StatusForbidden)
			w.WriteHeader(http.StatusOK)
		case "hints":
			w.WriteHeader(http.StatusEarlyHints)
			run.did <- struct{}{}
			continue
		case "wrong stream", "right stream":
			w.WriteHeader(map[string]int{"wrong stream": http.StatusUnauthorized, "right stream": http.StatusOK}[what])
			run.did <- struct{}{}
			continue
		case "forbids":
			return caddyhttp.Error(http.StatusForbidden, errors.New("no"))
		case "fails":
			return caddyhttp.Error(http.StatusServiceUnavailable, errors.New("broken"))
		case "cut": // by an upstream
			return caddyhttp.Error(http.StatusBadGateway, errors.New("cut"))
		case "panics":
			panic("broken")
		case "aborts":
			panic(http.ErrAbortHandler)
		case "leaves":
			run.leave()
		}
		break
	}
	return nil
}

// ends are how a request can end, and whether its unit is spent then. Streams and hints go on.
var togetherEnds = map[string]bool{
	"wrong": true, "right": false, "twice": true, "hints": false, "wrong stream": true, "right stream": false, "forbids": true,
	"fails": false, "cut": true, "panics": false, "aborts": true, "leaves": true, "silent": false,
}

// roll brings a key to the window of now.
func (m *together) roll(k *togetherKey, now int64) {
	if w := now / int64(m.window); w != k.window {
		k.window, k.settled = w, 0
	}
}

// open is how many units of a key are reserved in its window.
func (m *together) open(k *togetherKey) (n int) {
	for _, r := range m.runs {
		if r.key == k && r.window == k.window {
			n++
		}
	}
	return n
}

// expect is what the model says of the next request of a key: it is admitted, banned, denied for
// good, or for a moment by what runs or is reserved.
func (m *together) expect(k *togetherKey, now int64) string {
	m.roll(k, now)
	switch {
	case now < k.until:
		return "banned"
	case k.running >= togetherPlaces:
		return "in a moment"
	case k.settled+m.open(k) < togetherLimit:
		return "admitted"
	case k.settled < togetherLimit:
		return "in a moment"
	case k.denials[now/int64(m.denied)]+1 >= togetherAfter:
		return "banned"
	}
	return "denied"
}

// request sends a request, and compares what becomes of it.
func (m *together) request(k *togetherKey) {
	ctx, leave := context.WithCancel(context.Background())
	run := &togetherRun{key: k, leave: leave, do: make(chan string), did: make(chan struct{}), answered: make(chan sitetest.Reply, 1)}
	r := m.s.Request("192.0.2.1", sitetest.Header("K", k.name))
	r = r.WithContext(context.WithValue(ctx, togetherID{}, run))
	s, now := m.s, clock.Now()
	want := m.expect(k, now)
	m.wg.Go(func() {
		a := sitetest.Reply{Status: -1}
		defer func() {
			_ = recover()
			leave()
			run.answered <- a
		}()
		a = s.Send(r)
	})
	got, a := "admitted", sitetest.Reply{}
	select {
	case <-m.entered:
	case a = <-run.answered:
		got = m.denialOf(a)
	}
	if !m.exact { // Redis may have decided after the end of a ban
		want = m.expect(k, clock.Now())
	}
	if got != want && (m.exact || got == "admitted" && (!m.crowded || now < k.until)) {
		m.t.Fatalf("%q: key %s with %d settled, %d reserved and %d running, banned for %v: %s, want %s: %d %v after %q",
			m.block, k.name, k.settled, m.open(k), k.running, time.Duration(k.until-now), got, want, a.Status, a.Header, k.history)
	}
	m.note(run, got, now)
}

// denialOf says how a request was denied.
func (m *together) denialOf(a sitetest.Reply) string {
	switch {
	case a.Status != http.StatusTooManyRequests:
		m.t.Fatalf("a request that has not reached the handler got %d, %v", a.Status, a.Err)
	case strings.Contains(a.Body, abnormal):
		return "banned"
	case a.Header.Get("Retry-After") == "1":
		return "in a moment"
	}
	return "denied"
}

// note has the model know what became of a request.
func (m *together) note(run *togetherRun, got string, now int64) {
	k := run.key
	m.seen[got]++
	k.history = append(k.history, atNow(got))
	switch {
	case got == "admitted":
		run.window = k.window
		k.running++
		m.runs = append(m.runs, run)
	case now < k.until || got == "in a moment":
	default:
		k.denials[now/int64(m.denied)]++
		if got == "banned" {
			k.until = now + int64(m.ban)
		}
	}
}

// atNow is a line of a key's history.
func atNow(what string) string {
	return fmt.Sprint(time.Unix(0, clock.Now()).Format("15:04:05.000 "), what)
}

// end has one of the requests that run go on, or end.
func (m *together) end(i int, what string) {
	run := m.runs[i]
	m.roll(run.key, clock.Now())
	run.key.history = append(run.key.history, atNow(what))
	run.do <- what
	if strings.HasSuffix(what, "stream") || what == "hints" {
		<-run.did
	} else {
		<-run.answered
		run.key.running--
		m.runs = append(m.runs[:i:i], m.runs[i+1:]...)
	}
	if what == "hints" || run.window == -1 {
		return
	}
	if togetherEnds[what] && run.window == run.key.window {
		run.key.settled++
	}
	run.window = -1
}

// reset forgives a key, or all of them. What runs goes on.
func (m *together) reset(keys ...*togetherKey) {
	body := `{"zone":"together","all":true}`
	if len(keys) == 1 {
		body = `{"zone":"together","key":"` + keys[0].name + `"}`
	}
	if status, text := sitetest.Ask(http.MethodPost, "/rate_limit/reset", body); status != http.StatusOK {
		m.t.Fatalf("reset: %d %s", status, text)
	}
	reset := clock.Now() // what comes in the instant of a reset is forgiven as well
	redistest.Eventually(m.t, "the instant is over", func() bool { return clock.Now() >= reset+int64(time.Millisecond) })
	for _, k := range keys {
		k.history = append(k.history, "reset")
		k.settled, k.until = 0, 0
		clear(k.denials)
		for _, r := range m.runs {
			if r.key == k {
				r.window = -1
			}
		}
	}
}

// step is one thing that happens, at times that somebody waits.
func (m *together) step(wait func()) {
	k := m.keys[m.random.IntN(len(m.keys))]
	switch n := m.random.IntN(100); {
	case n < 60:
		m.request(k)
	case n < 88 && len(m.runs) > 0:
		i, all := m.random.IntN(len(m.runs)), slices.Sorted(maps.Keys(togetherEnds))
		what := all[m.random.IntN(len(all))]
		if m.runs[i].window == -1 && what != "leaves" {
			what = "silent" // it has begun, or is forgiven
		}
		m.end(i, what)
	case n < 92:
		m.reset(k)
	case n < 93:
		m.reset(m.keys...)
	case n < 96:
		m.load()
	default:
		wait()
	}
}

// await waits until a ban has ended, or Redis has all counts.
func (m *together) await() {
	if k := m.keys[m.random.IntN(len(m.keys))]; m.random.IntN(2) == 0 {
		redistest.Eventually(m.t, "its ban has ended", func() bool { return clock.Now() >= k.until })
		return
	}
	sitetest.Shows(m.t, "together", "has sent all", func(z operate.LimitState) bool { return !z.Concurrent && z.Unsent == 0 })
}

// nothingIsLeft ends all that runs, and wants nothing to be held or reserved.
func (m *together) nothingIsLeft() {
	for len(m.runs) > 0 {
		m.end(len(m.runs)-1, "leaves")
	}
	m.wg.Wait()
	redistest.Eventually(m.t, "no place is taken", func() bool { return inUse(m.t, "together") == 0 })
	redistest.Eventually(m.t, "nothing is reserved", func() bool { return sitetest.FirstOf(m.s.Handler.Zones()[0]).Table.Reservations().Len() == 0 })
	m.s.End()
}

// A zone with ban, concurrent and count_responses decides as the model says, on one node, with each
// way that responses can end: nobody is admitted while banned, and nothing is left in the end.
func TestBansPlacesAndReservationsTogether(t *testing.T) {
	seen := make(map[string]int)
	seeds := uint64(6)
	if redistest.Chaos {
		seeds = 500
	}
	for seed := range seeds {
		for _, algorithm := range []string{"fixed_window", "fixed_window\nmax_keys 2", "sliding_window", "sliding_window\nsub_windows 3", "sliding_log"} {
			synctest.Test(t, func(t *testing.T) {
				defer func() {
					if t.Failed() {
						t.Errorf("seed %d, %s", seed, algorithm)
					}
				}()
				m := newTogether(t, seed, &ratelimit.App{Namespace: fmt.Sprint("together", togethers.Add(1))}, "algorithm "+algorithm, seen)
				m.exact = algorithm == "fixed_window"
				sleeps := []time.Duration{time.Millisecond, time.Minute, 7 * time.Minute, 17 * time.Minute}
				for range 300 {
					m.step(func() { time.Sleep(sleeps[m.random.IntN(len(sleeps))]) })
				}
				m.nothingIsLeft()
			})
		}
	}
	for _, what := range []string{"admitted", "in a moment", "denied", "banned"} {
		if seen[what] < 20 {
			t.Errorf("%d requests were %s, want more", seen[what], what)
		}
	}
}

// The same with Redis, by an interval and where it decides, within max_keys and beyond: there the
// model says only what may not be admitted.
func TestBansPlacesAndReservationsInRedis(t *testing.T) {
	r, seen := redistest.Start(t), make(map[string]int)
	for _, options := range []string{"sync_rate 50ms", "sync_rate 50ms\nmax_keys 2", "sync_rate strict", "sync_rate strict\nmax_keys 2"} {
		for i, algorithm := range []string{"fixed_window", "sliding_log", "token_bucket", "gcra\nburst 4", "sliding_window\nsub_windows 3"} {
			app := sitetest.AppWith(r)
			app.Namespace = fmt.Sprint("together", len(options), "-", i)
			m := newTogether(t, uint64(i), app, options+"\nalgorithm "+algorithm, seen)
			for range redistest.Times(100, 300) {
				m.step(m.await)
			}
			m.nothingIsLeft()
		}
	}
	for _, what := range []string{"admitted", "in a moment", "banned"} {
		if seen[what] == 0 {
			t.Errorf("no request was %s", what)
		}
	}
}

// The same at once, from many clients: whoever has been told of a ban gets nothing more to the
// handler, over reloads and resets of others, and nothing is left in the end.
func TestBansPlacesAndReservationsAtOnce(t *testing.T) {
	const clients, each, keys = 16, 250, 12
	r := redistest.Start(t)
	for _, options := range []string{"sync_rate local", "sync_rate local\nmax_keys 7", "sync_rate 50ms", "sync_rate strict"} {
		app := sitetest.AppWith(r)
		m := &together{t: t, app: app, ban: time.Hour, block: sitetest.ZoneBlock("together", "key {http.request.header.K}\nlimit 3/30d\nconcurrent 2\nban 1h after 2/30d\ncount_responses 401 403\n"+options) +
			sitetest.ZoneBlock("together-queue", "limit 260000000000/30d\nalgorithm leaky_bucket\nqueue 1000\nconcurrent 40\nenforce 50%\nkey {http.request.header.K}")}
		app.Namespace = fmt.Sprint("at-once", len(options))
		most := 3000
		if strings.Contains(options, "strict") {
			most = 20_000
		}
		var banned, admitted [keys]atomic.Int64 // admitted once it was banned
		var current atomic.Pointer[sitetest.Site]
		load := func() {
			m.s = sitetest.NewSite(t, app, m.block)
			m.s.Next = func(w http.ResponseWriter, r *http.Request) error {
				if r.Header.Get("Banned") != "" {
					key, _ := strconv.Atoi(r.Header.Get("K"))
					admitted[key].Add(1)
				}
				return endAtRandom(w, r)
			}
			if old := current.Swap(m.s); old != nil {
				old.End()
			}
		}
		load()
		var wg sync.WaitGroup
		var left atomic.Int64
		left.Store(clients * each)
		for range clients {
			wg.Go(func() {
				for n := left.Add(-1); n >= 0; n = left.Add(-1) {
					key := int(n) * keys / (clients * each) // a few at a time
					askAtRandom(t, current.Load(), key, most, &banned[key])
				}
			})
		}
		for left.Load() > 0 {
			load()
			m.reset(&togetherKey{name: "another"})
			want := max(left.Load()-100, 0)
			redistest.Eventually(t, "more have asked", func() bool { return left.Load() <= want })
		}
		wg.Wait()
		some := 0
		for key := range keys {
			if n := admitted[key].Load(); n > 0 {
				t.Errorf("%s: %d requests of key %d reached the handler when somebody had been told of its ban", options, n, key)
			}
			if banned[key].Load() > 0 {
				some++
			}
		}
		if some < 2 {
			t.Errorf("%s: %d keys were banned, want more", options, some)
		}
		redistest.Eventually(t, "nobody has a place in the queue", func() bool { return inUse(t, "together-queue") == 0 })
		m.nothingIsLeft()
	}
}

// askAtRandom sends a request of a key, whose client leaves after so many microseconds at most. It
// counts where it is told of a ban, and says before whether anybody was.
func askAtRandom(t *testing.T, s *sitetest.Site, key, most int, banned *atomic.Int64) {
	defer func() {
		if p := recover(); p != nil && p != "broken" && p != http.ErrAbortHandler {
			t.Errorf("a request panics: %v\n%s", p, debug.Stack())
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(most))*time.Microsecond)
	defer cancel()
	change := []func(*http.Request){sitetest.Header("K", strconv.Itoa(key))}
	if banned.Load() > 0 {
		change = append(change, sitetest.Header("Banned", "yes"))
	}
	switch a := s.Send(s.Request("192.0.2.1", change...).WithContext(ctx)); {
	case strings.Contains(a.Body, abnormal):
		banned.Add(1)
	case a.Status == http.StatusTooManyRequests: // others run
		<-ctx.Done()
	}
}

// endAtRandom is a handler that ends in one of the ways there are.
func endAtRandom(w http.ResponseWriter, r *http.Request) error {
	switch rand.IntN(8) {
	case 0:
		panic("broken")
	case 1:
		panic(http.ErrAbortHandler)
	case 2:
		return caddyhttp.Error(http.StatusForbidden, errors.New("no"))
	case 3:
		<-r.Context().Done()
	case 4:
		w.WriteHeader(http.StatusOK)
		<-r.Context().Done()
	case 5:
		return nil
	default:
		w.WriteHeader(http.StatusUnauthorized)
	}
	return nil
}

// entered and leave are of requests on the path /held, which wait in the handler.
var entered, leave = make(chan struct{}), make(chan struct{})

// leavesWith is a client that leaves when it has so many bytes of a response that goes on.
func leavesWith(s *sitetest.Served, protocol string, bytes int64, change ...func(*http.Request)) {
	s.T.Helper()
	ctx, leave := context.WithCancel(s.T.Context())
	defer leave()
	a, err := s.Open(ctx, protocol, change...)
	if err != nil {
		s.T.Errorf("%s: %v, want a response", protocol, err)
		return
	}
	if n, err := io.CopyN(io.Discard, a.Body, bytes); err != nil {
		s.T.Errorf("%s: %d bytes, %v, want %d", protocol, n, err, bytes)
	}
	leave()
	_ = a.Body.Close()
}

// leavesBefore is a client that leaves when its request has entered what answers it, before that
// begins to.
func leavesBefore(s *sitetest.Served, protocol string, change ...func(*http.Request)) {
	ctx, leave := context.WithCancel(s.T.Context())
	var left sync.WaitGroup
	left.Go(func() { _, _ = s.Get(ctx, protocol, change...) })
	<-entered
	leave()
	left.Wait()
}

// nothingIsHeld waits until no request has a place or a turn.
func nothingIsHeld(t *testing.T, after string) {
	t.Helper()
	redistest.Eventually(t, "nothing is held after "+after, func() bool {
		return inUse(t, "ends-run") == 0 && bandwidthOf(t, "ends-slow").Open == 0
	})
}

// isSpent reports whether the only unit of a path is spent, and not only reserved.
func isSpent(s *sitetest.Served, path string) (spent bool) {
	s.T.Helper()
	redistest.Eventually(s.T, "the unit of "+path+" is settled", func() bool {
		a, err := s.Get(s.T.Context(), "HTTP/1.1", sitetest.OnPath(path), sitetest.Method(http.MethodOptions))
		if err != nil {
			return false
		}
		spent = a.Status == http.StatusTooManyRequests
		return !spent || a.Header.Get("Retry-After") != "1"
	})
	return spent
}

// Two handlers with a zone that one request passes reserve a unit each, and settle each.
func TestTwoHandlersReserveAUnitEach(t *testing.T) {
	zone := "rate_limit {\n" + sitetest.ZoneBlock("ends-twice", "limit 4/30d\ncount_responses 401\nkey all") + "}\n"
	s := sitetest.StartCaddy(t, "", "@right header Password right\nroute {\n"+zone+zone+"respond @right ok\nrespond 401\n}")
	s.Answers("HTTP/1.1", 10, http.StatusOK, 10, sitetest.Header("Password", "right"))
	s.Answers("HTTP/1.1", 10, http.StatusUnauthorized, 2)
}

// A WebSocket is settled when it begins, by its 101, and has its place until it ends. What it sends
// is not slowed.
func TestAWebSocketWithEveryOption(t *testing.T) {
	s := endings(t, "", endingBackend(t))
	config, err := websocket.NewConfig(fmt.Sprintf("wss://localhost:%d/socket", s.Port), fmt.Sprintf("https://localhost:%d", s.Port))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.Port), s.Clients["HTTP/1.1"].Transport.(*http.Transport).TLSClientConfig)
	if err != nil {
		t.Fatal(err)
	}
	c, err := websocket.NewClient(config, conn)
	if err != nil {
		t.Fatal(err)
	}
	sent := bytes.Repeat([]byte("tide"), 40_000)
	got := make([]byte, len(sent))
	go func() { _, _ = c.Write(sent) }()
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("what comes back is not what was sent, %v", err)
	}
	if n, slowed := inUse(t, "ends-run"), bandwidthOf(t, "ends-slow").Bytes; n != 1 || slowed != 0 {
		t.Errorf("%d run beside an open WebSocket, and %d of its bytes were slowed, want it and none", n, slowed)
	}
	if isSpent(s, "/socket") {
		t.Error("101 is not what counts, and the unit of an open WebSocket is spent")
	}
	_ = c.Close()
	nothingIsHeld(t, "a WebSocket")
}

// Clients that leave a queue give up their places, turns and units in the zones beside it as the
// pages say.
func TestLeavingAQueueWithEveryOption(t *testing.T) {
	s := sitetest.StartCaddy(t, "", "rate_limit {\n"+sitetest.ZoneBlock("ends-queue", "limit 10/30d\nalgorithm leaky_bucket\nqueue 5\nkey all")+
		sitetest.ZoneBlock("ends-guess", "limit 30/30d\ncount_responses 401\nkey all")+sitetest.ZoneBlock("ends-run", "concurrent 20\nkey all")+
		sitetest.ZoneBlock("ends-slow", "bandwidth 1GiB/s\nkey all")+"}\nrespond ok")
	s.Answers("HTTP/1.1", 1, http.StatusOK, 1)
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() { _, _ = s.Get(ctx, protocols[i%3]) })
	}
	redistest.Eventually(t, "five wait", func() bool { return sitetest.InQueue(t) == 5 })
	if n := inUse(t, "ends-run"); n != 5 {
		t.Errorf("%d run while five wait", n)
	}
	s.Answers("HTTP/1.1", 1, http.StatusTooManyRequests, 1)
	leave()
	wg.Wait()
	redistest.Eventually(t, "all have left", func() bool { return sitetest.InQueue(t) == 0 })
	nothingIsHeld(t, "a queue")
	// The first one got 200. Of the five nobody knows what the status was to be.
	if _, text := sitetest.Ask(http.MethodPost, "/rate_limit/explain", `{"zone":"ends-guess","key":"all"}`); !strings.Contains(text, `"used":5,`) {
		t.Errorf("after five that left: %s, want 5 used", text)
	}
}

// An error route that sends the request to the site again ends when the limit is spent: each round
// is a request, whose error counts with its status. One that comes back through the same zone is
// not counted again.
func TestALoopOfErrorRoutesEnds(t *testing.T) {
	for _, options := range []string{"limit 5/30d\ncount_responses 401", "limit 5/30d\ncount_responses 401\nalgorithm token_bucket", "limit 5/30d\ncount_responses 4xx\nban 1h after 1/30d"} {
		zone := "rate_limit {\n" + sitetest.ZoneBlock("loop", options+"\nkey all\nconcurrent 3") + "}\n"
		s := sitetest.StartCaddy(t, "", zone+"error 401\nhandle_errors 401 {\n"+zone+`reverse_proxy 127.0.0.1:{http.request.port} {
		header_up Host localhost:{http.request.port}
		transport http {
			tls_insecure_skip_verify
			tls_server_name localhost
		}
	}
}`)
		admitted := sitetest.DecidedAs(t, "loop", "admitted")
		a, err := s.Get(t.Context(), "HTTP/1.1")
		if err != nil || a.Status != http.StatusTooManyRequests {
			t.Errorf("%s: a loop is answered by %d, %v, want 429", options, a.Status, err)
		}
		if n := sitetest.DecidedAs(t, "loop", "admitted") - admitted; n != 5 {
			t.Errorf("%s: %d rounds were admitted, want 5", options, n)
		}
		redistest.Eventually(t, "no request runs", func() bool { return inUse(t, "loop") == 0 })
	}
}
