package behaviour_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/websocket"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// costingBackend answers as the query of a request says.
func costingBackend(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		for _, value := range q["cost"] {
			w.Header().Add("X-Cost", value)
		}
		status, _ := strconv.Atoi(cmp.Or(q.Get("status"), "200"))
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Length", q.Get("size"))
		}
		w.WriteHeader(status)
		size, _ := strconv.Atoi(q.Get("size"))
		_, _ = io.WriteString(w, strings.Repeat("x", size))
		if q.Has("cut") {
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// usedOf is how much of a zone's limit is used, by the path that its handler stands for.
func usedOf(t *testing.T, path string) int64 {
	t.Helper()
	x, err := sitetest.Explained(t, operate.ExplainRequest{Method: "GET", URL: "http://site" + path})
	if err != nil {
		t.Fatal(err)
	}
	for _, z := range x.Handlers[0].Zones {
		if len(z.Limits) > 0 {
			return z.Limits[0].Used
		}
	}
	t.Fatalf("no zone has limited %s", path)
	return 0
}

var settling = []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra"}

// A request costs what its response says: in a header, by its length, by a placeholder, or by the
// sum of them. Without a figure what was reserved stays spent.
func TestAResponseSaysWhatItCosts(t *testing.T) {
	t.Run("local", func(t *testing.T) { saysWhatItCosts(t, sitetest.NewLifetime(t), "", "") })
	t.Run("strict", func(t *testing.T) {
		saysWhatItCosts(t, sitetest.NewLifetime(t), "redis redis://"+redistest.Start(t).Addr+"\nstrict_timeout 30s", "sync_rate strict")
	})
}

func saysWhatItCosts(t *testing.T, l *sitetest.Lifetime, global, zone string) {
	var zones strings.Builder
	algorithms := settling
	if zone != "" { // a strict log counts to 1,024 and has a test of its own
		algorithms = []string{"sliding_window", "fixed_window", "token_bucket", "gcra"}
	}
	for _, algorithm := range algorithms {
		for source, lines := range map[string]string{
			"header": "response_cost header X-Cost", "bytes": "response_cost bytes", "placeholder": "response_cost {http.reverse_proxy.header.X-Cost}",
			"sum": "response_cost header X-Cost * 0.5\nresponse_cost bytes * 2",
		} {
			fmt.Fprintf(&zones, "zone says-%[1]s-%[2]s {\nmatch path /%[1]s/%[2]s\nkey all\nlimit 1000000/30d\nalgorithm %[2]s\ncost 30\ncount_responses 2xx 304\n%[3]s\n%[4]s\n}\n", source, algorithm, lines, zone)
		}
	}
	l.Load(l.Config(global, "rate_limit {\n"+zones.String()+"}\nreverse_proxy "+costingBackend(t), ""))
	for _, c := range []struct {
		source, method, query string
		costs                 int64
	}{
		{"header", "GET", "cost=12", 12}, {"header", "GET", "cost=500", 500}, {"header", "GET", "cost=0", 0}, {"header", "GET", "cost=+1e3", 1000}, {"header", "GET", "cost=0.1", 1},
		{"header", "GET", "", 30}, {"header", "GET", "cost=", 30}, {"header", "GET", "cost=1,2", 30}, {"header", "GET", "cost=1&cost=2", 30}, {"header", "GET", "cost=-1", 30},
		{"header", "GET", "cost=NaN", 30}, {"header", "GET", "cost=0x10", 30}, {"header", "GET", "cost=12&status=404", 0}, {"header", "GET", "status=500", 0}, {"header", "HEAD", "cost=3&size=9", 3},
		{"bytes", "GET", "size=5000", 5000}, {"bytes", "GET", "size=0", 0}, {"bytes", "HEAD", "size=100", 0}, {"bytes", "GET", "status=204", 0}, {"bytes", "GET", "status=304", 0},
		{"bytes", "GET", "size=50&status=403", 0}, {"bytes", "GET", "size=70&cut=1", 70},
		{"placeholder", "GET", "cost=77", 77}, {"placeholder", "GET", "", 30}, {"placeholder", "GET", "cost=7&cut=1", 30}, {"placeholder", "GET", "cost=40&cut=1", 40},
		{"sum", "GET", "cost=7&size=10", 24}, {"sum", "GET", "size=10", 30},
	} {
		for _, algorithm := range algorithms {
			path := "/" + c.source + "/" + algorithm
			before := usedOf(t, path)
			r, err := http.NewRequestWithContext(t.Context(), c.method, "http://site"+path+"?"+c.query, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := l.Client.Do(r)
			if err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				if response.StatusCode == http.StatusTooManyRequests {
					t.Fatalf("%s was denied", path)
				}
			}
			got := int64(-1)
			redistest.Eventually(t, fmt.Sprintf("%s %s?%s costs %d", c.method, path, c.query, c.costs), func() bool {
				got = usedOf(t, path) - before
				return got == c.costs
			})
		}
	}
}

// An estimate above a limit is lowered to it: a wrong one must not lock out for good.
func TestAnEstimateAboveTheLimit(t *testing.T) {
	c := newSettlements(t, "high", sitetest.ZoneBlock("high", "limit 100/60d 40/30d\ncost 5000\nresponse_cost header X-Cost"), &ratelimit.App{})
	if first, second := c.cost(38), c.cost(1); first != http.StatusOK || second != http.StatusTooManyRequests {
		t.Errorf("answers are %d and %d, want 200, and 429 as 5000 are lowered to 40", first, second)
	}
	c.uses("high", "what the first one has cost", 38)
}

// Where Redis can't be asked when a response says that it has cost more than was reserved, this
// node's own counters are charged, and Redis learns of it when it is back: under each algorithm.
func TestAChargeWhileRedisIsAway(t *testing.T) {
	proxy := faultproxy.Start(t, redistest.Start(t).Addr)
	var zones strings.Builder
	for _, algorithm := range settling {
		zones.WriteString(sitetest.ZoneBlock("away-"+algorithm, "limit 1000/1000h\nsync_rate strict\nalgorithm "+algorithm+"\ncost 10\nresponse_cost header X-Cost"))
	}
	s := sitetest.NewSite(t, sitetest.AppWith(&redistest.Server{Addr: proxy.Addr}), zones.String())
	left := map[string]string{}
	s.Next = func(w http.ResponseWriter, r *http.Request) error {
		for _, algorithm := range settling {
			left[algorithm] = sitetest.ValueOf(r, "http.rate_limit.away-"+algorithm+".remaining")
		}
		cost := "0"
		if r.Header.Get("Cuts") != "" {
			proxy.Set(faultproxy.Reset)
			redistest.Eventually(t, "Redis is known to be away", func() bool {
				s.Decides("192.0.2.2", 1, 1)
				return s.Shared().Strict.Status().Open > 0
			})
			cost = "200"
		}
		w.Header().Set("X-Cost", cost)
		return nil
	}
	charged := func() bool {
		s.Get("192.0.2.1")
		for _, algorithm := range settling {
			if left[algorithm] != "790" {
				return false
			}
		}
		return true
	}
	s.Get("192.0.2.1", sitetest.Header("Cuts", "1"))
	if !charged() {
		t.Errorf("while Redis is away %v are left, want 790 each", left)
	}
	proxy.Set(faultproxy.None)
	redistest.Eventually(t, "Redis is back", func() bool { return s.Shared().Strict.Status().Open == 0 })
	redistest.Eventually(t, "Redis knows of 200", charged)
	for _, algorithm := range settling {
		sitetest.Shows(t, "away-"+algorithm, "has sent all", func(z operate.LimitState) bool { return z.Unsent == 0 })
	}
	if !charged() {
		t.Errorf("in the end %v are left, want 790 each", left)
	}
}

// ends is a handler that ends as the path of a request says, and whose responses say what they
// have cost.
type ends struct{}

func init() {
	caddy.RegisterModule(ends{})
	httpcaddyfile.RegisterHandlerDirective("ends", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		h.Next()
		return ends{}, nil
	})
}

func (ends) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.ends", New: func() caddy.Module { return ends{} }}
}

// begin writes a response that costs so much: in a header, in JSON, and in bytes. It may go on.
func begin(w http.ResponseWriter, cost string) { beginWith(w, cost, "}") }

// beginCut writes one whose JSON does not end.
func beginCut(w http.ResponseWriter, cost string) { beginWith(w, cost, " ") }

func beginWith(w http.ResponseWriter, cost, end string) {
	n := 0
	_, _ = fmt.Sscan(cost, &n)
	w.Header().Set("X-Cost", cost)
	w.Header().Set("Content-Type", "application/json")
	body := fmt.Sprintf(`{"usage":%s`, cost) + end
	_, _ = io.WriteString(w, body+strings.Repeat(" ", max(0, n-len(body))))
	_ = http.NewResponseController(w).Flush()
}

func (ends) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if r.Method == http.MethodOptions { // isSpent asks
		return nil
	}
	what, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	cost, _, _ := strings.Cut(rest, "/")
	switch what {
	case "panics":
		panic("broken")
	case "panics-late":
		beginCut(w, cost)
		panic("broken")
	case "aborts":
		panic(http.ErrAbortHandler)
	case "aborts-late":
		beginCut(w, cost)
		panic(http.ErrAbortHandler)
	case "fails":
		return caddyhttp.Error(http.StatusUnauthorized, errors.New("no"))
	case "hints":
		w.Header().Set("X-Cost", "99999")
		w.WriteHeader(http.StatusEarlyHints)
		begin(w, cost)
	case "silent":
	case "twice":
		w.WriteHeader(http.StatusUnauthorized)
		w.WriteHeader(http.StatusOK)
	case "ends":
		begin(w, cost)
	case "taken":
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return err
		}
		return c.Close()
	case "sized":
		w.Header().Set("Content-Length", cost)
		beginCut(w, cost)
		<-r.Context().Done()
	case "whole":
		begin(w, cost)
		<-r.Context().Done()
	case "stays":
		beginCut(w, cost)
		<-r.Context().Done()
	case "held":
		begin(w, cost)
		entered <- struct{}{}
		<-leave
	default:
		return next.ServeHTTP(w, r)
	}
	return nil
}

// costSources are where zones of endings look for a figure, each with an estimate of 40.
var costSources = []string{"header", "bytes", "json"}

// optionZones are zones with which a request passes all options at once. Each path has one unit of
// which it depends on the response whether it is spent.
const optionZones = `
zone ends-guess {
	limit 1/30d
	algorithm fixed_window
	key {http.request.uri.path}
	count_responses 401
}
zone ends-ban {
	limit 100000/30d
	ban 1h
}
zone ends-run {
	concurrent 40
	key all
}
zone ends-keep {
	limit 100000/30d
	key all
	reserve @paying 20%
}
zone ends-slow {
	bandwidth 1GiB/s
	key all
}
`

const costZones = `
zone costs-header {
	key {http.request.uri.path}
	limit 100000/30d
	algorithm fixed_window
	cost 40
	response_cost header X-Cost
}
zone costs-bytes {
	key {http.request.uri.path}
	limit 100000/30d
	algorithm fixed_window
	cost 40
	response_cost bytes
}
zone costs-json {
	key {http.request.uri.path}
	limit 100000/30d
	algorithm fixed_window
	cost 40
	count_responses 2xx
	response_cost json usage
	response_cost_default 70
}
`

// endings is a site with each source of a cost and each option, beside these global options.
func endings(t *testing.T, global, upstream string) *sitetest.Served {
	return sitetest.StartCaddy(t, global, "@paying header X-Class paying\nroute {\nrate_limit {\n"+costZones+optionZones+"}\nends\nreverse_proxy /refused/* 127.0.0.1:1\nreverse_proxy "+upstream+"\n}\nhandle_errors {\nheader X-Cost 5\nrespond `{\"usage\":5}`\n}")
}

// explain says how limits stand for a path.
func explain(s *sitetest.Served, path string) operate.ExplainedSite {
	s.T.Helper()
	x, err := sitetest.Explained(s.T, operate.ExplainRequest{Method: "GET", URL: fmt.Sprintf("https://localhost:%d%s", s.Port, path)})
	if err != nil {
		s.T.Fatal(err)
	}
	return x
}

// costsOf are how much of each source's limit is used for a path.
func costsOf(s *sitetest.Served, path string) (used []int64) {
	s.T.Helper()
	x := explain(s, path)
	for _, source := range costSources {
		for _, z := range x.Handlers[0].Zones {
			if z.Zone == "costs-"+source {
				used = append(used, z.Limits[0].Used)
			}
		}
	}
	return used
}

// costs waits until a path has cost so much by each source.
func settles(s *sitetest.Served, path string, want ...int64) {
	s.T.Helper()
	got := []int64(nil)
	defer func() {
		if s.T.Failed() {
			s.T.Logf("%s has cost %v", path, got)
		}
	}()
	redistest.Eventually(s.T, fmt.Sprintf("%s costs %v", path, want), func() bool {
		got = costsOf(s, path)
		return slices.Equal(got, want)
	})
}

// endingBackend ends responses as an upstream can.
func endingBackend(t *testing.T) string {
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")
		switch parts[1] {
		case "cut":
			panic(http.ErrAbortHandler)
		case "cut-late":
			beginCut(w, parts[2])
			panic(http.ErrAbortHandler)
		case "socket":
			websocket.Handler(func(c *websocket.Conn) { _, _ = io.Copy(c, c) }).ServeHTTP(w, r)
		case "waits":
			_, _ = io.Copy(io.Discard, r.Body) // so that it learns of a client that goes
			entered <- struct{}{}
			<-r.Context().Done()
		}
	}))
	t.Cleanup(b.Close)
	return b.Listener.Addr().String()
}

// However a request ends, by every protocol, with less and with more than its estimate of 40: what
// a header said at the beginning holds, bytes are those that left, and of what may have grown it is
// the estimate, the default of 70 or what was seen, whichever is most. Where nobody knows the
// status the estimate stays. What all options hold for it is free again, and its unit is spent
// where the status counts or nobody knows it. Who asks for /stays or /waits leaves, and for /whole
// or /sized leaves with all of it.
func TestEveryHardEnd(t *testing.T) {
	t.Run("local", func(t *testing.T) { everyHardEnd(t, endings(t, "", endingBackend(t))) })
	t.Run("strict", func(t *testing.T) {
		redis := redistest.Start(t)
		everyHardEnd(t, endings(t, "rate_limit {\nredis "+redis.URL+"\nsync_rate strict\n}", endingBackend(t)))
	})
}

func everyHardEnd(t *testing.T, s *sitetest.Served) {
	for _, c := range []struct {
		path               string
		header, bytes, obj int64
		spent, slowed      bool
	}{
		{"/ends/30", 30, 30, 30, false, true}, {"/ends/500", 500, 500, 500, false, true}, {"/silent/30", 40, 0, 70, false, false},
		{"/hints/30", 30, 30, 30, false, true}, {"/hints/500", 500, 500, 500, false, true}, {"/twice/30", 40, 0, 0, true, false},
		{"/panics/30", 40, 0, 0, false, false}, {"/panics-late/30", 30, 30, 70, false, true}, {"/panics-late/500", 500, 500, 500, false, true},
		{"/aborts/30", 40, 40, 40, true, false}, {"/aborts-late/30", 30, 30, 70, false, true}, {"/aborts-late/500", 500, 500, 500, false, true},
		{"/fails/30", 40, 40, 0, true, false}, {"/taken/30", 40, 40, 40, true, false}, {"/refused/30", 40, 40, 0, false, false},
		{"/cut/30", 40, 40, 40, true, false}, {"/cut-late/30", 30, 30, 70, false, true}, {"/cut-late/500", 500, 500, 500, false, true},
		{"/stays/30", 30, 30, 70, false, true}, {"/stays/500", 500, 500, 500, false, true}, {"/waits/30", 40, 40, 40, true, false},
		{"/whole/30", 30, 30, 30, false, true}, {"/whole/500", 500, 500, 500, false, true},
		{"/sized/30", 30, 30, 30, false, true}, {"/sized/500", 500, 500, 500, false, true},
	} {
		for _, protocol := range protocols {
			path, want, spent := c.path+"/"+protocol, []int64{c.header, c.bytes, c.obj}, c.spent
			if strings.HasPrefix(path, "/taken") && protocol != "HTTP/1.1" {
				// They have no connection to take, which is an error 500.
				want, spent = []int64{40, 40, 0}, false
			}
			before := bandwidthOf(t, "ends-slow").Bytes
			// No client sends a POST again by itself. It ends the connection when it has all.
			change := []func(*http.Request){sitetest.OnPath(path), sitetest.Method(http.MethodPost), func(r *http.Request) { r.Close = strings.HasPrefix(path, "/sized") }}
			switch what := strings.Split(path, "/")[1]; what {
			case "stays", "whole", "sized":
				leavesWith(s, protocol, c.bytes, change...)
			case "waits":
				leavesBefore(s, protocol, change...)
			default:
				_, _ = s.Get(t.Context(), protocol, change...)
			}
			settles(s, path, want...)
			nothingIsHeld(t, path)
			if n := bandwidthOf(t, "ends-slow").Bytes - before; (n > 0) != c.slowed {
				t.Errorf("%s: %d bytes went by the bandwidth", path, n)
			}
			if got := isSpent(s, path); got != spent {
				t.Errorf("%s: its unit is spent: %v, want %v", path, got, spent)
			}
		}
	}
	if n := sitetest.DecidedAs(t, "ends-ban", "denied") + sitetest.DecidedAs(t, "ends-ban", "banned") + sitetest.DecidedAs(t, "ends-keep", "denied"); n != 0 {
		t.Errorf("%d requests were denied by zones that have room", n)
	}
}

// A reload in the middle of responses changes nothing: they settle in the counters that go on. Of a
// zone that is removed meanwhile there are none, and one that comes back begins at nothing.
func TestCostsOverReloads(t *testing.T) {
	s := endings(t, "", endingBackend(t))
	var asked sync.WaitGroup
	ask := func() {
		for _, path := range []string{"/held/30", "/held/500"} {
			asked.Go(func() { _, _ = s.Get(t.Context(), "HTTP/1.1", sitetest.OnPath(path)) })
			<-entered
		}
	}
	ask()
	reload(s)
	settles(s, "/held/30", 30, 40, 40)
	settles(s, "/held/500", 500, 40, 40)
	leave <- struct{}{}
	leave <- struct{}{}
	settles(s, "/held/30", 30, 30, 30)
	settles(s, "/held/500", 500, 500, 500)

	ask()
	with := s.Config
	s.Config = []byte(strings.ReplaceAll(string(with), `"costs-`, `"others-`))
	reload(s)
	leave <- struct{}{}
	leave <- struct{}{}
	asked.Wait() // else a connection of theirs is idle when the reload has closed those that were
	s.Config = with
	reload(s)
	if a, err := s.Get(t.Context(), "HTTP/1.1", sitetest.OnPath("/ends/30")); err != nil || a.Status != http.StatusOK {
		t.Errorf("the zone that came back answers %d, %v", a.Status, err)
	}
	settles(s, "/ends/30", 30, 30, 30)
}

// After Destruct has flushed: where a zone is removed while its requests run, and its counters have
// sent all, Redis hears what the responses say then, for the nodes that still have the zone.
func TestSettlementsAfterTheirCountersHaveEnded(t *testing.T) {
	redis := redistest.Start(t)
	var zones strings.Builder
	for _, rate := range []string{"50ms", "strict"} {
		for _, algorithm := range settling {
			fmt.Fprintf(&zones, "zone gone-%[1]s-%[2]s {\nkey all\nlimit 1000/30d\nalgorithm %[1]s\nsync_rate %[2]s\ncost 40\nresponse_cost json usage\n}\n", algorithm, rate)
		}
	}
	s := sitetest.StartCaddy(t, "rate_limit {\nredis "+redis.URL+"\n}", "route {\nrate_limit {\n"+zones.String()+"}\nends\n}")
	end := holdTwo(s)
	for _, algorithm := range settling {
		zone := "gone-" + algorithm + "-50ms"
		redistest.Eventually(t, zone+" has sent its counts", func() bool { return holds(redis, zone, 80) })
	}
	s.Config = []byte(strings.ReplaceAll(string(s.Config), `"gone-`, `"others-`))
	reload(s)
	end()
	redisSettles(t, redis, "strict")
	redisSettles(t, redis, "50ms")
}

// holdTwo has two requests wait in their handler, one that costs less than its estimate and one
// that costs more, until end is called.
func holdTwo(s *sitetest.Served) (end func()) {
	var open sync.WaitGroup
	for _, path := range []string{"/held/30", "/held/500"} {
		open.Go(func() { _, _ = s.Get(s.T.Context(), "HTTP/1.1", sitetest.OnPath(path)) })
		<-entered
	}
	return func() {
		leave <- struct{}{}
		leave <- struct{}{}
		open.Wait()
	}
}

// redisSettles waits until Redis has what the two requests have cost in zones that are gone.
func redisSettles(t *testing.T, redis *redistest.Server, rate string) {
	t.Helper()
	for _, algorithm := range settling {
		zone := "gone-" + algorithm + "-" + rate
		redistest.Eventually(t, zone+" has 530", func() bool { return holds(redis, zone, 530) })
	}
}

// holds reports whether Redis has so much as spent of a zone's one key.
func holds(redis *redistest.Server, zone string, spent int) bool {
	for _, key := range redis.Do("KEYS", "*:"+zone+":*").([]any) {
		sum, _ := redis.Do("HGET", key, "sum").(string)
		words, at := strings.Fields(sum), 0 // total stamp end epoch open
		if strings.Contains(zone, "bucket") || strings.Contains(zone, "gcra") {
			at = 3 // stamp end open total
		}
		if len(words) > at && words[at] == fmt.Sprint(spent) {
			return true
		}
	}
	return false
}

// What is reserved when a process ends stays spent in the next one.
func TestPersistedReservationsStaySpent(t *testing.T) {
	h := sitetest.NewHome(t, "storage")
	block := sitetest.ZoneBlock("kept", "key all\nlimit 1000/30d\nalgorithm fixed_window\ncost 40\nresponse_cost header X-Cost")
	s := h.Boot(block)
	ends, begun := make(chan struct{}), make(chan struct{})
	s.Next = func(w http.ResponseWriter, _ *http.Request) error {
		close(begun)
		<-ends
		begin(w, "3")
		return nil
	}
	done := make(chan struct{})
	go func() { defer close(done); s.Get("1.2.3.4") }()
	<-begun
	s.End()
	close(ends)
	<-done
	s = h.Boot(block)
	left := ""
	s.Next = func(_ http.ResponseWriter, r *http.Request) error {
		left = sitetest.ValueOf(r, "http.rate_limit.kept.remaining")
		return nil
	}
	if s.Get("1.2.3.4"); left != "920" {
		t.Errorf("%s are left, want 920: 40 of before stay spent", left)
	}
}

// A handler within that compresses hides figures of JSON, which then cost the default, and bytes
// are those that left; one outside hides nothing. Nobody reads a body that is sent as a file and
// has no figure, and its bytes are counted all the same.
func TestCostsBesideEncode(t *testing.T) {
	dir := t.TempDir()
	body := `{"usage":500}` + strings.Repeat(" ", 5000)
	const within = "rate_limit {\n" + costZones + "}\n"
	for i, c := range []struct {
		site, file, encoding string
		smaller              bool
		json                 int64
	}{
		{within + "encode gzip\n", "json", "gzip", true, 70}, {"encode gzip\n" + within, "json", "gzip", false, 500}, {within, "bin", "", false, 70},
	} {
		path := fmt.Sprintf("/usage-%d.%s", i, c.file)
		if err := os.WriteFile(filepath.Join(dir, path), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		s := sitetest.StartCaddy(t, "", "route {\n"+c.site+"root "+dir+"\nfile_server\n}")
		a, err := s.Get(t.Context(), "HTTP/2.0", sitetest.OnPath(path), sitetest.Header("Accept-Encoding", "gzip"))
		if err != nil || a.Header.Get("Content-Encoding") != c.encoding {
			t.Fatalf("%v, %v", a.Header, err)
		}
		bytes := int64(len(body))
		if c.smaller {
			bytes = int64(len(a.Body))
		}
		settles(s, path, 40, bytes, c.json)
	}
}

// A stream through a zone that reads its JSON takes no memory, however long it is, and the usage in
// its last event is what the request costs.
func TestALongStreamTakesNoMemory(t *testing.T) {
	event := []byte(`data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"` + strings.Repeat("The quick brown fox jumps over the lazy dog. ", 1400) + `"}}],"usage":null}` + "\n\n")
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("stream", "key all\nlimit 1000000/30d\nalgorithm fixed_window\ncost 10\ncount_responses 2xx\nresponse_cost json usage.total_tokens"))
	s.Next = func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w)
		piece := func() {
			if _, err := w.Write(event); err != nil {
				t.Error(err)
			}
			_ = flush.Flush()
		}
		piece()
		fewest := 1e9
		for range 50 { // other goroutines may allocate meanwhile
			fewest = min(fewest, testing.AllocsPerRun(20, piece))
		}
		if fewest > 0 {
			t.Errorf("%v allocations for an event, want none", fewest)
		}
		_, _ = io.WriteString(w, "data: {\"choices\":[],\"usage\":{\"total_tokens\":4321}}\n\ndata: [DONE]\n\n")
		return nil
	}
	r := s.Request("1.2.3.4")
	if err := s.Handler.ServeHTTP(flushSink{sitetest.Sink{}}, r, caddyhttp.HandlerFunc(s.Next)); err != nil {
		t.Fatal(err)
	}
	s.Next = func(_ http.ResponseWriter, r *http.Request) error {
		if left, want := sitetest.ValueOf(r, "http.rate_limit.stream.remaining"), fmt.Sprint(1_000_000-4321-10); left != want {
			t.Errorf("after a stream that used 4321 %s are left for the next, want %s", left, want)
		}
		return nil
	}
	s.Get("1.2.3.4")
}

// flushSink is a sink that can be flushed.
type flushSink struct{ sitetest.Sink }

func (flushSink) Flush() {}

// A settlements is a site whose zone reserves 10 of 100 for each request, until a header of its
// response says what it has cost. Requests can be held in the handler.
type settlements struct {
	*sitetest.Site
	t       *testing.T
	zone    string
	under   chan struct{}
	release chan string
	reached int
	mu      sync.Mutex
	ended   sync.WaitGroup
}

func newSettlements(t *testing.T, zone, block string, app *ratelimit.App, reserves ...any) *settlements {
	c := &settlements{t: t, zone: zone, under: make(chan struct{}), release: make(chan string)}
	c.Site = reservedSite(t, app, block, reserves...)
	t.Cleanup(c.ended.Wait)
	c.Next = func(w http.ResponseWriter, r *http.Request) error {
		cost := r.Header.Get("Costs")
		c.mu.Lock()
		c.reached++
		c.mu.Unlock()
		if cost == "" {
			c.under <- struct{}{}
			cost = <-c.release
		}
		w.Header().Set("X-Cost", cost)
		return nil
	}
	return c
}

// cost sends a request that costs so much in truth.
func (c *settlements) cost(n int, change ...func(*http.Request)) int {
	return c.Get("192.0.2.1", append(change, sitetest.Header("Costs", fmt.Sprint(n)))...).Status
}

// hold sends requests that wait in the handler, and end has as many answered.
func (c *settlements) hold(count int) {
	for range count {
		c.ended.Go(func() { c.Get("192.0.2.1") })
		<-c.under
	}
}

func (c *settlements) end(count, cost int) {
	for range count {
		c.release <- fmt.Sprint(cost)
	}
}

// uses waits until a zone says that so much of the limit is used.
func (c *settlements) uses(zone, what string, want int) {
	c.t.Helper()
	got := -1
	redistest.Eventually(c.t, fmt.Sprintf("%s: %d are used", what, want), func() bool {
		status, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, fmt.Sprintf(`{"zone":%q,"key":"192.0.2.1"}`, zone))
		var x operate.Explained
		if err := json.Unmarshal([]byte(text), &x); err != nil || status != http.StatusOK {
			c.t.Fatalf("explain = %d %s", status, text)
		}
		got = int(x.Zones[0].Limits[len(x.Zones[0].Limits)-1].Used)
		return got == want
	})
}

// What a response costs, with what else a zone can do: on one node and in Redis, under each
// algorithm.
func TestSettlementsWithOtherOptions(t *testing.T) {
	server := redistest.Start(t)
	for _, rate := range []string{"local", "strict"} {
		for _, algorithm := range settling {
			for name, test := range settlementCases {
				t.Run(rate+"/"+algorithm+"/"+name, func(t *testing.T) {
					app := &ratelimit.App{}
					if rate == "strict" {
						app = sitetest.AppWith(server)
					}
					zone := strings.Join([]string{name, rate, algorithm}, "-")
					block := sitetest.ZoneBlock(zone, "limit 100/80000h\nsync_rate "+rate+"\nalgorithm "+algorithm+"\ncost 10\nresponse_cost header X-Cost\n"+test.options) + test.more
					test.run(newSettlements(t, zone, block, app, test.reserves...))
				})
			}
		}
	}
}

var settlementCases = map[string]struct {
	options, more string
	reserves      []any
	run           func(c *settlements)
}{
	"shadow": {options: "enforce off", run: func(c *settlements) {
		c.cost(95)
		if c.uses(c.zone, "the first", 95); c.cost(70) != http.StatusOK {
			c.t.Error("a zone that is not enforced denies")
		}
		c.uses(c.zone, "what would be denied takes and settles nothing", 95)
	}},
	"override": {run: func(c *settlements) {
		c.hold(1)
		sitetest.Changed(c.t, http.MethodPost, sitetest.Overrides, fmt.Sprintf(`{"zone":%q,"key":"192.0.2.1","limit":"1000/80000h"}`, c.zone))
		c.end(1, 99)
		c.uses(c.zone, "after a charge under an override", 99)
		if status := c.cost(40); status != http.StatusOK {
			c.t.Errorf("with an override the next one gets %d", status)
		}
		c.uses(c.zone, "and the next one", 139)
	}},
	"reset": {run: func(c *settlements) {
		c.hold(2)
		reset(c.t, fmt.Sprintf(`{"zone":%q,"key":"192.0.2.1"}`, c.zone))
		c.end(1, 80)
		c.end(1, 0)
		c.cost(7)
		c.uses(c.zone, "what was taken before a reset settles nothing after it", 7)
	}},
	"another-zone-denies": {more: sitetest.ZoneBlock("small", "limit 1/80000h"), run: func(c *settlements) {
		if a, b := c.cost(30), c.cost(30); a != http.StatusOK || b != http.StatusTooManyRequests {
			c.t.Errorf("answers are %d and %d, want 200 and 429", a, b)
		}
		c.uses(c.zone, "of what another zone denied all is refunded", 30)
	}},
	"reserve": {reserves: []any{"paying", 20}, run: func(c *settlements) {
		denies := func(what string) {
			if a, b := c.cost(1), c.cost(5, class("paying")); a != http.StatusTooManyRequests || b != http.StatusOK {
				c.t.Errorf("beside %s others get %d and who pays %d, want 429 and 200", what, a, b)
			}
		}
		c.hold(8)
		denies("eight estimates of others")
		c.end(8, 9)
		c.uses(c.zone, "others and who pays", 77)
		denies("what they have cost")
		c.uses(c.zone, "and who pays again", 82)
	}},
	"concurrent": {options: "concurrent 1", run: func(c *settlements) {
		if c.hold(1); c.cost(50) != http.StatusTooManyRequests {
			c.t.Error("a second request has a place")
		}
		c.end(1, 33)
		c.uses(c.zone, "the one that had a place", 33)
		redistest.Eventually(c.t, "its place is free", func() bool { return inUse(c.t, c.zone) == 0 })
		if c.cost(4) != http.StatusOK {
			c.t.Error("the place is not free")
		}
		c.uses(c.zone, "and the next one", 37)
	}},
	"ban": {options: "ban 1h after 2/30d", run: func(c *settlements) {
		c.hold(10)
		for range 4 {
			if status := c.cost(1); status != http.StatusTooManyRequests {
				c.t.Errorf("beside ten estimates: %d", status)
			}
		}
		c.end(10, 0)
		redistest.Eventually(c.t, "who was denied by what was reserved is not banned", func() bool { return c.cost(1) == http.StatusOK })
	}},
	"a-hundred-at-once": {run: func(c *settlements) {
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { c.Get("192.0.2.1") })
		}
		for range 10 {
			<-c.under
		}
		for range 10 {
			c.release <- "10"
		}
		all.Wait()
		if c.reached != 10 {
			c.t.Errorf("%d of 100 have reached the handler, which ten estimates are left for", c.reached)
		}
		c.uses(c.zone, "ten that cost their estimate", 100)
	}},
}
