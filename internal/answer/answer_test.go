package answer

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/standard"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

func init() {
	caddy.RegisterModule(answerer{})
}

// answerer is a handler that has decided already: it stands before others in routes of a real
// server.
type answerer struct {
	Deny        bool   `json:"deny,omitempty"`
	Unavailable bool   `json:"unavailable,omitempty"`
	Message     string `json:"message,omitempty"`
	Status      int    `json:"status,omitempty"`

	responder *Responder
}

func (answerer) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.test_answerer", New: func() caddy.Module { return new(answerer) }}
}

func (a *answerer) Provision(ctx caddy.Context) error {
	e, err := NewEvents(ctx)
	if a.Status == 0 {
		a.Status = http.StatusTooManyRequests
	}
	a.responder = NewResponder(Options{Status: a.Status, Message: a.Message, Headers: IETF | Kong, Events: e})
	return err
}

func (a *answerer) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	other := result("all", "", 100, time.Minute, admits(99, 0))
	if a.Deny {
		all := []Result{result("login", "-1m", 5, time.Minute, denies(11*time.Second+1)), other}
		d := Denial{Zone: "login", Wait: 11*time.Second + 1, Results: all}
		if a.Unavailable {
			d.Reason = Unavailable
		}
		return a.responder.Deny(w, r, &d)
	}
	all := []Result{result("login", "-1m", 5, time.Minute, admits(4, 0)), other}
	a.responder.Admit(w, r, new(Fields), all, 0)
	return next.ServeHTTP(w, r)
}

func request(target string) *http.Request { return httptest.NewRequest(http.MethodGet, target, nil) }

// prepared returns a request as Caddy's server hands it to handlers.
func prepared(r *http.Request) *http.Request {
	return caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, nil)
}

// server is one of Caddy's with these routes, and these error routes if any. It doesn't listen.
func server(t testing.TB, routes, errorRoutes string) http.Handler {
	t.Helper()
	server := `"automatic_https": {"disable": true}, "routes": [` + routes + `]`
	if errorRoutes != "" {
		server += `, "errors": {"routes": [` + errorRoutes + `]}`
	}
	ctx, err := caddy.ProvisionContext(&caddy.Config{AppsRaw: caddy.ModuleMap{
		"http": json.RawMessage(`{"servers": {"s": {` + server + `}}}`),
	}})
	if err != nil {
		t.Fatal(err)
	}
	app, err := ctx.App("http")
	if err != nil {
		t.Fatal(err)
	}
	return app.(*caddyhttp.App).Servers["s"]
}

func serve(t *testing.T, r *http.Request, routes, errorRoutes string) *http.Response {
	t.Helper()
	w := httptest.NewRecorder()
	server(t, routes, errorRoutes).ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestHeadersAreAppendedToAnUpstreams(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Add("RateLimit", `"upstream";r=7;t=3`)
		w.Header().Add("RateLimit-Policy", `"upstream";q=9;w=3, "other";q=1;w=1`)
		w.Header().Set("X-RateLimit-Remaining-Minute", "1000")
	}))
	defer upstream.Close()
	front := httptest.NewServer(server(t, `{"handle": [
		{"handler": "test_answerer"},
		{"handler": "reverse_proxy", "upstreams": [{"dial": "`+upstream.Listener.Addr().String()+`"}]}
	]}`, ""))
	defer front.Close()
	resp, err := front.Client().Get(front.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d", resp.StatusCode)
	}
	for name, want := range map[string][]string{
		"RateLimit":        {`"login-1m";r=4;t=48, "all";r=99;t=60`, `"upstream";r=7;t=3`},
		"RateLimit-Policy": {`"login-1m";q=5;w=60, "all";q=100;w=60`, `"upstream";q=9;w=3, "other";q=1;w=1`},
		// Single numbers can't be appended to. Ours comes first, which is what most clients read.
		"X-RateLimit-Remaining-Minute": {"4", "1000"},
	} {
		if got := resp.Header.Values(name); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestDenialIsProblemDetails(t *testing.T) {
	for _, test := range []struct {
		method, options string
		status          int
		contentType     string
		body            string
	}{
		{"GET", ``, 429, "application/problem+json",
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",` +
				`"status":429,"detail":"Try again in 12 seconds.","violated-policies":["login-1m"]}`},
		{"HEAD", ``, 429, "application/problem+json", ""},
		{"GET", `, "status": 418, "message": "slow down"`, 418, "text/plain; charset=utf-8", "slow down"},
		{"GET", `, "message": "{http.rate_limit.exceeded.name}: {http.rate_limit.exceeded.wait} s, {http.request.header.X}"`, 429,
			"text/plain; charset=utf-8", "login: 12 s, {env.HOME}"},
		{"HEAD", `, "message": "slow down"`, 429, "text/plain; charset=utf-8", ""},
		{"GET", `, "unavailable": true, "status": 418`, 503, "application/problem+json",
			`{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",` +
				`"title":"Temporary Reduced Capacity","status":503,"detail":"Try again in 12 seconds."}`},
	} {
		r := httptest.NewRequest(test.method, "http://example.com/", nil)
		r.Header.Set("X", "{env.HOME}")
		resp := serve(t, r, `{"handle": [{"handler": "headers", "response": {"set": {"Content-Length": ["3"], "Cache-Control": ["public"]}}},
			{"handler": "test_answerer", "deny": true`+test.options+`}]}`, "")
		if resp.StatusCode != test.status {
			t.Errorf("%s %s: status %d, want %d", test.method, test.options, resp.StatusCode, test.status)
		}
		for name, want := range map[string]string{
			"Content-Type": test.contentType, "Retry-After": "12", "Cache-Control": "no-store", "Content-Length": "",
			"RateLimit": `"login-1m";r=0;t=12, "all";r=99;t=60`, "RateLimit-Remaining": "0", "RateLimit-Reset": "12",
		} {
			if got := resp.Header.Values(name); strings.Join(got, "|") != want {
				t.Errorf("%s %s: %s %q, want %q", test.method, test.options, name, got, want)
			}
		}
		if got := body(t, resp); got != test.body {
			t.Errorf("%s %s: body\n%s, want\n%s", test.method, test.options, got, test.body)
		}
	}
}

func TestErrorRoutesAnswerForUs(t *testing.T) {
	const respond = `{"handle": [{"handler": "static_response", "status_code": "{http.error.status_code}",
		"body": "{http.error.message}, {http.rate_limit.exceeded.name}, {http.rate_limit.exceeded.wait}, {http.rate_limit.login.limit}"}]}`
	for _, test := range []struct {
		options string
		status  int
		body    string
	}{
		{``, 429, "rate limit exceeded, login, 12, 5"},
		{`, "status": 420`, 420, "rate limit exceeded, login, 12, 5"},
		{`, "unavailable": true`, 503, "rate limit unavailable, login, 12, 5"},
		{`, "message": "slow down"`, 429, "rate limit exceeded, login, 12, 5"},
	} {
		resp := serve(t, request("/"), `{"handle": [{"handler": "test_answerer", "deny": true`+test.options+`}]}`, respond)
		if got := body(t, resp); resp.StatusCode != test.status || got != test.body {
			t.Errorf("%s: %d %q, want %d %q", test.options, resp.StatusCode, got, test.status, test.body)
		}
		if resp.Header.Get("Retry-After") != "12" || resp.Header.Get("Cache-Control") != "no-store" || resp.Header.Get("RateLimit") == "" {
			t.Errorf("%s: headers did not survive into the error route: %v", test.options, resp.Header)
		}
	}
	// An error from an error route goes nowhere: there the denial is written.
	resp := serve(t, request("/"), `{"handle": [{"handler": "error", "status_code": "500"}]}`, `{"handle": [{"handler": "test_answerer", "deny": true}]}`)
	if got := body(t, resp); resp.StatusCode != 429 || !strings.Contains(got, "quota-exceeded") {
		t.Errorf("denied within an error route: %d %q", resp.StatusCode, got)
	}
}

func TestPlaceholdersOfLimits(t *testing.T) {
	repl := caddy.NewReplacer()
	all := []Result{
		result("login", "-1m", 5, time.Minute, admits(4, 0)),
		result("login", "-1h", 20, time.Hour, admits(4, 0)),
		result("login", "-1s", 20, time.Second, admits(9, 0)),
		fixed(result("a.b", "", 7, time.Minute, admits(1, time.Second))),
	}
	setPlaceholders(repl, "", 0, all)
	clear(all) // it is not kept
	for name, want := range map[string]string{
		"http.rate_limit.login.limit": "20", "http.rate_limit.login.remaining": "4", "http.rate_limit.login.reset": "720",
		"http.rate_limit.a.b.limit": "7", "http.rate_limit.a.b.remaining": "1", "http.rate_limit.a.b.reset": "2",
	} {
		if got, ok := repl.GetString(name); !ok || got != want {
			t.Errorf("{%s} = %q, %v; want %q", name, got, ok, want)
		}
	}
	for _, name := range []string{
		"http.rate_limit.exceeded.name", "http.rate_limit.exceeded.wait", "http.rate_limit.other.limit", "http.rate_limit.login.what", "http.rate_limit.",
		"http.rate_limit.limit", "http.rate_limit", "login.limit",
	} {
		if got, ok := repl.Get(name); ok {
			t.Errorf("{%s} = %v, want it unknown", name, got)
		}
	}
	setPlaceholders(repl, "other", 3, nil)
	if got := repl.ReplaceAll("{http.rate_limit.exceeded.name} {http.rate_limit.exceeded.wait}", ""); got != "other 3" {
		t.Errorf("after a denial: %q", got)
	}
}

// Most denials are of one limit and have a way of their own to say the same.
func TestPlaceholdersOfOneDenial(t *testing.T) {
	ask := func(all []Result) (told []string) {
		repl := caddy.NewReplacer()
		setPlaceholders(repl, "login", 12, all)
		clear(all) // it is not kept
		for _, name := range []string{"exceeded.name", "exceeded.wait", "login.limit", "login.remaining", "login.reset", "other.limit", "login", "exceeded"} {
			value, ok := repl.Get("http.rate_limit." + name)
			told = append(told, fmt.Sprintf("%s: %T %[2]v, %v", name, value, ok))
		}
		return told
	}
	denied := result("login", "", 5, time.Minute, denies(11*time.Second+1))
	one, general := ask([]Result{denied}), ask([]Result{denied, result("z", "", 5, time.Minute, admits(4, 0))})
	if !slices.Equal(one, general) || one[4] != "login.reset: int64 12, true" {
		t.Errorf("of one limit:\n%q, beside another one:\n%q", one, general)
	}
}

func TestPlaceholdersCostOneAllocation(t *testing.T) {
	one := []Result{result("login", "", 5, time.Minute, admits(4, 0))}
	r := prepared(request("/"))
	fresh := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	setPlaceholders(fresh, "", 0, one) // the list of sources has room for two after the server's
	if n := testing.AllocsPerRun(1, func() {
		repl := *fresh
		setPlaceholders(&repl, "", 0, one)
	}); n > 2 { // the copy is one of them
		t.Errorf("%v allocations, want 2", n)
	}
}

func TestRetryAfter(t *testing.T) {
	for wait, want := range map[time.Duration]int64{
		0: 1, -time.Second: 1, 1: 1, time.Second: 1, time.Second + 1: 2, 59 * time.Second: 59, 60 * time.Second: 60, math.MaxInt64: math.MaxInt32,
	} {
		if got := retryAfterSeconds(wait, 0); got != want {
			t.Errorf("retryAfterSeconds(%v, 0) = %d, want %d", wait, got, want)
		}
	}
	for _, test := range []struct {
		wait      time.Duration
		jitter    float64
		low, high int64
	}{
		{60 * time.Second, .1, 60, 66}, {time.Second, .1, 1, 2}, {10 * time.Second, 1, 10, 20}, {10 * time.Second, 7, 10, 20},
		{10 * time.Second, math.NaN(), 10, 10}, {10 * time.Second, -1, 10, 10}, {math.MaxInt64, 1, math.MaxInt32, math.MaxInt32},
	} {
		seen := map[int64]bool{}
		for range 2000 {
			got := retryAfterSeconds(test.wait, test.jitter)
			if got < test.low || got > test.high {
				t.Fatalf("retryAfterSeconds(%v, %v) = %d, want %d to %d", test.wait, test.jitter, got, test.low, test.high)
			}
			seen[got] = true
		}
		if len(seen) != int(test.high-test.low)+1 {
			t.Errorf("retryAfterSeconds(%v, %v) gave %d different values, want %d to %d", test.wait, test.jitter, len(seen), test.low, test.high)
		}
	}
}

func TestProblemNamesAreJSON(t *testing.T) {
	for _, zone := range []string{"login", `a"b\c`, "ü\n<script>", "\x00"} {
		all := []Result{result(zone, "", 5, time.Minute, denies(1)), result("b", "", 5, time.Minute, denies(1))}
		var problem struct {
			Type, Detail string
			Status       int
			Violated     []string `json:"violated-policies"`
		}
		raw := NewResponder(Options{Status: 429}).appendProblem(nil, &Denial{Results: all}, 1)
		if err := json.Unmarshal(raw, &problem); err != nil {
			t.Fatalf("zone %q: %v in %s", zone, err, raw)
		}
		if !slices.Equal(problem.Violated, []string{zone, "b"}) || problem.Status != 429 || problem.Detail != "Try again in 1 second." {
			t.Errorf("zone %q: %+v", zone, problem)
		}
	}
}

type listener struct{ heard []caddy.Event }

func (l *listener) Handle(_ context.Context, e caddy.Event) error {
	l.heard = append(l.heard, e)
	return nil
}

// listen returns Events, and a listener of those with this name.
func listen(t *testing.T, name string) (*Events, *listener) {
	t.Helper()
	ctx, err := caddy.ProvisionContext(&caddy.Config{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := NewEvents(ctx)
	if err != nil {
		t.Fatal(err)
	}
	l := new(listener)
	if err := e.app.Subscribe(&caddyevents.Subscription{Events: []string{name}, Handlers: []caddyevents.Handler{l}}); err != nil {
		t.Fatal(err)
	}
	return e, l
}

func TestEvent(t *testing.T) {
	e, l := listen(t, exceededEvent)
	r := prepared(request("/"))
	r.RemoteAddr = "[2001:db8::1]:443"
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "192.0.2.1")
	e.emit(exceededEvent, r, "login", &Who{Key: []byte("k")}, 12)
	if len(l.heard) != 1 {
		t.Fatalf("%d events, want 1", len(l.heard))
	}
	for name, want := range map[string]any{"zone": "login", "key_id": keys.IDOf([]byte("k")).Short(), "key": "", "wait": 12 * time.Second, "remote_ip": "2001:db8::1", "client_ip": "192.0.2.1"} {
		if got := l.heard[0].Data[name]; got != want {
			t.Errorf("event data %s = %v, want %v", name, got, want)
		}
	}
}

// The event of a denial in early data has no address: its owner may be somebody else.
func TestNoEventNamesTheOwnerOfAnAddressThatIsNotProven(t *testing.T) {
	e, l := listen(t, exceededEvent)
	o := NewResponder(Options{Status: 429, Events: e})
	for i, complete := range []bool{false, true} {
		r := prepared(request("/"))
		r.RemoteAddr, r.TLS = "192.0.2.1:443", &tls.ConnectionState{HandshakeComplete: complete}
		if err := o.Deny(httptest.NewRecorder(), r, &Denial{Reason: Denied, Who: Who{Key: []byte("k")}}); err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{true: "192.0.2.1"}[complete]
		if data := l.heard[i].Data; data["remote_ip"] != want || data["client_ip"] != want {
			t.Errorf("handshake complete %t: the event has %v, want %q", complete, data, want)
		}
	}
}

func TestDenialOutsideOfAServer(t *testing.T) {
	o := NewResponder(Options{Status: 429, Message: "{x} slow down", Headers: IETF})
	w := httptest.NewRecorder()
	if err := o.Deny(w, request("/"), &Denial{}); err != nil {
		t.Fatal(err)
	}
	if w.Code != 429 || w.Header().Get("Retry-After") != "1" || w.Body.String() != "{x} slow down" {
		t.Errorf("%d %v %q", w.Code, w.Header(), w.Body)
	}
}

func FuzzProblem(f *testing.F) {
	f.Add("login", int64(12))
	f.Fuzz(func(t *testing.T, zone string, seconds int64) {
		raw := NewResponder(Options{Status: 429}).appendProblem(nil, &Denial{Results: []Result{result(zone, "-1m", 1, time.Minute, denies(1))}}, seconds)
		if !json.Valid(raw) || !bytes.Contains(raw, strconv.AppendInt(nil, seconds, 10)) {
			t.Errorf("not JSON: %s", raw)
		}
	})
}
