package behaviour_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// A routedDenial is what a site answers to a denied request that has a neighbour with error routes
// on its listener.
type routedDenial struct {
	site, path   string
	status       int
	contentType  string
	body, header string
}

const problem = "application/problem+json"

func (c routedDenial) check(t *testing.T) {
	port := redistest.FreePort(t)
	sitetest.LoadSites(t, fmt.Sprintf(`
http://neighbour.example:%d {
	bind 127.0.0.1
	handle_errors {
		respond neighbour
	}
}
http://site.example:%[1]d {
	bind 127.0.0.1
	%s
	respond ok
}
`, port, c.site))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, c.path), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host, r.Close = fmt.Sprint("site.example:", port), true
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if status := cmp.Or(c.status, http.StatusTooManyRequests); response.StatusCode != status {
		t.Errorf("status %d, want %d", response.StatusCode, status)
	}
	if c.contentType != "" && response.Header.Get("Content-Type") != c.contentType || response.Header.Get("Page") != c.header {
		t.Errorf("headers %v, want a body of type %q and Page %q", response.Header, c.contentType, c.header)
	}
	if c.contentType == problem && !strings.Contains(string(got), "quota-exceeded") || c.contentType != problem && string(got) != c.body {
		t.Errorf("body %q, want %q", got, c.body)
	}
	if response.Header.Get("Retry-After") == "" {
		t.Errorf("no Retry-After: %v", response.Header)
	}
}

// A client that asks before it sends a body has its denial at once, and need not send it: else an
// upload that is denied would be sent to the end.
func TestADeniedUploadIsNotAskedFor(t *testing.T) {
	for name, test := range map[string]struct{ site, want string }{
		"denied":              {"rate_limit 0/30d", "429"},
		"with error routes":   {"rate_limit 0/30d\nhandle_errors {\nrespond page\n}", "429"},
		"denied with another": {"rate_limit 0/30d {\nstatus 503\n}", "503"},
		"too large":           {"rate_limit {\nzone dear {\nlimit 10/30d\ncost bytes\ncost_default 1\n}\n}", "429"},
		"admitted":            {"rate_limit 9/30d\nrespond {http.request.body}", "100"},
	} {
		t.Run(name, func(t *testing.T) {
			port := redistest.FreePort(t)
			sitetest.LoadSites(t, fmt.Sprintf("http://127.0.0.1:%d {\n%s\n}\n", port, test.site))
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = fmt.Fprintf(c, "PUT /file HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n", port)
			line, err := bufio.NewReader(c).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if status := strings.Fields(line)[1]; status != test.want {
				t.Errorf("the first answer to an upload whose body is not sent yet is %s, want %s", status, test.want)
			}
		})
	}
}

// Error routes belong to a listener. A denial is left to them where one of them matches it, and
// answered otherwise, whatever a neighbour has. Routes that match by their path see the request as
// it came.
func TestSitesOnOneListenerAnswerForThemselves(t *testing.T) {
	for name, c := range map[string]routedDenial{
		"no error routes":           {site: "rate_limit 0/30d", contentType: problem},
		"no error routes, message":  {site: "rate_limit 0/30d {\nmessage \"slow down\"\n}", contentType: "text/plain; charset=utf-8", body: "slow down"},
		"routes of another status":  {site: "rate_limit 0/30d\nhandle_errors 404 5xx {\nrespond page\n}", contentType: problem},
		"routes of this status":     {site: "rate_limit 0/30d\nhandle_errors 404 429 {\nrespond page\n}", body: "page"},
		"routes of its class":       {site: "rate_limit 0/30d\nhandle_errors 4xx {\nrespond page\n}", body: "page"},
		"routes of both":            {site: "rate_limit 0/30d\nhandle_errors 404 {\nrespond no\n}\nhandle_errors 4xx {\nrespond page\n}", body: "page"},
		"routes of all errors":      {site: "rate_limit 0/30d\nhandle_errors {\nrespond page\n}", body: "page"},
		"routes that write nothing": {site: "rate_limit 0/30d\nhandle_errors {\nheader Page yes\n}", header: "yes"},
		"another status of ours":    {site: "rate_limit 0/30d {\nstatus 420\n}\nhandle_errors 429 {\nrespond page\n}", status: 420, contentType: problem},
		"a zone by its name": {
			site: "rate_limit {\n" + sitetest.ZoneBlock("routed", "limit 0/30d") + "}\nhandle_errors {\n@z `{http.rate_limit.exceeded.name} == \"routed\"`\nrespond @z page\n}",
			body: "page",
		},
		"another zone by its name": {
			site:        "rate_limit {\n" + sitetest.ZoneBlock("routed", "limit 0/30d") + "}\nhandle_errors {\n@z `{http.rate_limit.exceeded.name} == \"other\"`\nrespond @z page\n}",
			contentType: problem,
		},
		"a path that is another":  {site: "rate_limit 0/30d\nhandle_errors {\n@api path /api/*\nhandle @api {\nrespond page\n}\n}", contentType: problem},
		"a path that is this one": {site: "rate_limit 0/30d\nhandle_errors {\n@api path /api/*\nhandle @api {\nrespond page\n}\n}", path: "/api/x", body: "page"},
		"a path before it was rewritten": {
			site: "rewrite * /internal\nrate_limit 0/30d\nhandle_errors {\n@api path /api/*\nhandle @api {\nrespond page\n}\n}", path: "/api/x", body: "page",
		},
		"a path after it was rewritten": {
			site: "rewrite * /api/x\nrate_limit 0/30d\nhandle_errors {\n@api path /api/*\nhandle @api {\nrespond page\n}\n}", contentType: problem,
		},
		"one of a group": {
			site: "rate_limit 0/30d\nhandle_errors {\nhandle /api/* {\nrespond api\n}\nhandle {\nroute /x {\nrespond x\n}\n}\n}", contentType: problem,
		},
		"the rest of a group": {
			site: "rate_limit 0/30d\nhandle_errors {\nhandle /api/* {\nrespond api\n}\nhandle {\nrespond page\n}\n}", body: "page",
		},
	} {
		t.Run(name, c.check)
	}
}

// A request that fails is counted once by a zone, on whatever way it comes to the zone again.
func TestCountedOnceOnEveryErrorRoute(t *testing.T) {
	const (
		limits = `{"handler": "rate_limit", "rate_limits": {"once": {"limits": [{"max_events": 2, "window": "30d"}]}}}`
		fails  = `{"handler": "error", "status_code": 500}`
		page   = `{"handler": "static_response", "body": "page"}`
	)
	route := func(handlers ...string) string { return `[{"handle": [` + strings.Join(handlers, ", ") + `]}]` }
	subroute := func(routes, errors string) string {
		return `{"handler": "subroute", "routes": ` + routes + `, "errors": {"routes": ` + errors + `}}`
	}
	named := `, "named_routes": {"limited": {"handle": [` + limits + `]}}`
	const invoke = `{"handler": "invoke", "name": "limited"}`
	for name, server := range map[string]string{
		"the server's":            `"routes": ` + route(limits, fails) + `, "errors": {"routes": ` + route(limits, page) + `}`,
		"a subroute's":            `"routes": ` + route(subroute(route(limits, fails), route(limits, page))),
		"one within a subroute's": `"routes": ` + route(subroute(route(limits, fails), route(`{"handler": "subroute", "routes": `+route(limits, page)+`}`))),
		"invoked by name":         `"routes": ` + route(invoke, fails) + `, "errors": {"routes": ` + route(invoke, page) + `}` + named,
	} {
		t.Run(name, func(t *testing.T) {
			port := redistest.FreePort(t)
			config := fmt.Sprintf(`{"admin": {"disabled": true, "config": {"persist": false}}, "logging": {"logs": {"default": {"writer": {"output": "discard"}}}},
				"apps": {"http": {"servers": {"s": {"listen": ["127.0.0.1:%d"], "automatic_https": {"disable": true}, %s}}}}}`, port, server)
			sitetest.LoadConfig(t, []byte(config))
			for i, want := range []int{500, 500, 429} {
				response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
				if err != nil {
					t.Fatal(err)
				}
				if err := response.Body.Close(); err != nil {
					t.Fatal(err)
				}
				if response.StatusCode != want {
					t.Errorf("request %d: %d, want %d", i+1, response.StatusCode, want)
				}
			}
		})
	}
}

// A message is sent as it is written, except placeholders that are known. One that is JSON is sent
// as JSON, whatever their values are.
func TestMessageThroughCaddy(t *testing.T) {
	const text, object = "text/plain; charset=utf-8", "application/json"
	for message, want := range map[string][2]string{
		`slow down`:               {text, `slow down`},
		`{"message":"slow down"}`: {object, `{"message":"slow down"}`},
		`{"error":{"code":429,"of":["a",{"b":1}]}}`: {object, `{"error":{"code":429,"of":["a",{"b":1}]}}`},
		`[{"code": 429}]`: {object, `[{"code": 429}]`},
		`{"zone":"{http.rate_limit.exceeded.name}","limit":{http.rate_limit.said.limit},"x":"{http.request.header.X}","y":{http.request.header.X}}`: {
			object, `{"zone":"said","limit":0,"x":"a\"}\\{env.HOME}","y":"a\"}\\{env.HOME}"}`,
		},
		`{"unknown":"{nothing.there}"}`:                               {object, `{"unknown":"{nothing.there}"}`},
		`{"broken": }`:                                                {text, `{"broken": }`},
		`{nothing.there} and {}`:                                      {text, `{nothing.there} and {}`},
		`{ {http.rate_limit.exceeded.name} }`:                         {text, `{ said }`},
		`{http.rate_limit.exceeded.name}, X: {http.request.header.X}`: {text, `said, X: a"}\{env.HOME}`},
		`\{http.rate_limit.exceeded.name\}`:                           {text, `{http.rate_limit.exceeded.name}`},
		`{http.rate_limit.said.limit}`:                                {text, `0`},
		`{http.request.header.None}`:                                  {text, ``},
		`a } b { c`:                                                   {text, `a } b { c`},
		`<style>p { color: red }</style>`:                             {text, `<style>p { color: red }</style>`},
	} {
		s := sitetest.StartCaddy(t, "", fmt.Sprintf("rate_limit {\nmessage `%s`\n%s}\nrespond ok", message, sitetest.ZoneBlock("said", "limit 0/30d")))
		a, err := s.Get(t.Context(), "HTTP/1.1", sitetest.Header("X", `a"}\{env.HOME}`))
		if err != nil || a.Status != http.StatusTooManyRequests {
			t.Fatalf("%d, %v", a.Status, err)
		}
		if got := a.Header.Get("Content-Type"); got != want[0] || a.Body != want[1] {
			t.Errorf("message %s: %s of type %q, want %s of type %q", message, a.Body, got, want[1], want[0])
		}
	}
}

// A line names who was denied and what for, and what a client sent does no harm in it. Of the key
// it has a digest, and the text only if wanted.
func TestLineOfADenial(t *testing.T) {
	const secret = "sk-0123456789"
	// the tag of text, its length, the text
	key := append([]byte{0x01, byte(len(secret))}, secret...)
	digest := fmt.Sprintf("%x", sha256.Sum256(key))[:8]
	for _, logKey := range []bool{false, true} {
		options := "log_key off\n"
		if logKey {
			options = "log_key\n"
		}
		s := sitetest.StartCaddy(t, "servers {\ntrusted_proxies static 127.0.0.1\ntrusted_proxies_strict\n}",
			"rate_limit {\n"+options+sitetest.ZoneBlock(fmt.Sprint("line-", logKey), "limit 0/30d\nkey {http.request.header.X-Api-Key}")+"}\nrespond ok")
		hostile := "/%0d%0a%1b[31m%22%7d\u202e/" + strings.Repeat("long", 100)
		a, err := s.Get(t.Context(), "HTTP/1.1", sitetest.Header("X-Api-Key", secret), sitetest.Header("X-Forwarded-For", "198.51.100.7"), func(r *http.Request) {
			r.Method = "REPORT"
			u, err := r.URL.Parse(hostile + "?token=" + secret)
			if err != nil {
				t.Fatal(err)
			}
			r.URL = u
		})
		if err != nil || a.Status != http.StatusTooManyRequests {
			t.Fatalf("%d, %v", a.Status, err)
		}
		written, err := os.ReadFile(s.Log)
		if err != nil {
			t.Fatal(err)
		}
		var line map[string]any
		for text := range strings.Lines(string(written)) {
			if strings.Contains(text, `"rate limit exceeded"`) {
				if err := json.Unmarshal([]byte(text), &line); err != nil {
					t.Fatalf("%v in %s", err, text)
				}
			}
		}
		path, _ := line["path"].(string)
		delete(line, "path")
		for name, want := range map[string]any{
			"remote_ip": "127.0.0.1", "client_ip": "198.51.100.7", "method": "REPORT", "host": fmt.Sprint("localhost:", s.Port), "key_id": digest,
			"zone": fmt.Sprint("line-", logKey), "limit": 0.,
		} {
			if line[name] != want {
				t.Errorf("%s: %v, want %v", name, line[name], want)
			}
		}
		if !strings.HasPrefix(path, "/%0D%0A%1B") && !strings.HasPrefix(path, "/%0d%0a%1b") || len(path) > reqkey.MaxText+len("...") {
			t.Errorf("path: %q", path)
		}
		if key := line["key"]; logKey != (key == secret) || logKey != strings.Contains(string(written), secret) {
			t.Errorf("log_key %v: the key is %v in\n%s", logKey, key, written)
		}
	}
}

func init() { caddy.RegisterModule(new(eventListener)) }

// eventListener is bound to events by configurations of tests, and keeps those of all of them.
type eventListener struct{}

var heard struct {
	sync.Mutex
	events []caddy.Event
}

func (*eventListener) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.test_listener", New: func() caddy.Module { return new(eventListener) }}
}

func (*eventListener) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	return nil
}

func (*eventListener) Handle(_ context.Context, e caddy.Event) error {
	heard.Lock()
	defer heard.Unlock()
	heard.events = append(heard.events, e)
	return nil
}

// heardOf takes the data of the events that were heard of zones with this prefix.
func heardOf(prefix string) (data []map[string]any) {
	heard.Lock()
	defer heard.Unlock()
	heard.events = slices.DeleteFunc(heard.events, func(e caddy.Event) bool {
		zone, _ := e.Data["zone"].(string)
		if !strings.HasPrefix(zone, prefix) {
			return false
		}
		data = append(data, e.Data)
		return true
	})
	return data
}

// A key that has spent 80 % is told of once, by each algorithm, and so is another one. Zones that
// are not enforced tell of none.
func TestKeysNearTheirLimitAreToldOnce(t *testing.T) {
	const listens = "events {\non rate_limit_near test_listener\n}"
	for _, algorithm := range algorithms.KindNames() {
		if algorithm == "leaky_bucket" {
			continue // who comes near its end waits
		}
		zone, options := "near-"+algorithm, "limit 10/3650d\nkey {http.request.header.K}\nalgorithm "+algorithm
		s := sitetest.StartCaddy(t, listens, "rate_limit {\n"+sitetest.ZoneBlock(zone, options)+sitetest.ZoneBlock(zone+"-shadow", options+"\nenforce off")+"}\nrespond {http.rate_limit."+zone+".used}")
		for _, key := range []string{"a", "b"} {
			for i := range 12 {
				a, err := s.Get(t.Context(), "HTTP/1.1", sitetest.Header("K", key))
				if err != nil || (a.Status == http.StatusOK) != (i < 10) {
					t.Fatalf("%s: request %d: %d, %v", algorithm, i+1, a.Status, err)
				}
				if i < 10 && a.Body != fmt.Sprint(i+1) {
					t.Errorf("%s: %s used after request %d", algorithm, a.Body, i+1)
				}
				told := heardOf(zone)
				if i != 7 {
					if len(told) > 0 {
						t.Errorf("%s: told %v after request %d", algorithm, told, i+1)
					}
					continue
				}
				if len(told) != 1 || told[0]["zone"] != zone || told[0]["limit"] != int64(10) || told[0]["remaining"] != int64(2) ||
					told[0]["window"] != 3650*24*time.Hour || told[0]["client_ip"] != "127.0.0.1" || told[0]["remote_ip"] != "127.0.0.1" {
					t.Errorf("%s: told %v after 8 of 10", algorithm, told)
				}
			}
		}
	}
}

// A reload tells of no key again.
func TestAKeyNearItsLimitIsToldOnceOverAReload(t *testing.T) {
	for i, test := range []struct{ limit, requests, told int }{{10, 9, 1}, {11, 2, 0}} {
		s := sitetest.StartCaddy(t, "events {\non rate_limit_near test_listener\n}",
			"rate_limit {\n"+sitetest.ZoneBlock("near-reloaded", fmt.Sprintf("limit %d/3650d\nalgorithm fixed_window", test.limit))+"}\nrespond ok")
		s.Answers("HTTP/1.1", test.requests, http.StatusOK, test.requests)
		if told := heardOf("near-reloaded"); len(told) != test.told {
			t.Errorf("configuration %d: told %v, want %d events", i+1, told, test.told)
		}
	}
}

// A bucket with a burst, and a queue, tell of what may come at once and of the time in which it
// comes back, not of their limit: what remains is part of that, and is never more.
//
// bubble: each site has one request in its own.
func TestHeadersTellOfWhatMayComeAtOnce(t *testing.T) {
	for i, test := range []struct {
		zone, policy, limit, remaining, used string
		override                             int64
		reserves                             []any
	}{
		{zone: "limit 600/1m\nburst 100\nalgorithm token_bucket", policy: `"a";q=100;w=10`, limit: "100", remaining: "99", used: "1"},
		{zone: "limit 10/1s\nburst 20\nalgorithm gcra", policy: `"a";q=20;w=2`, limit: "20", remaining: "19", used: "1"},
		{zone: "limit 7/1s\nburst 20\nalgorithm gcra", policy: `"a";q=20;w=3`, limit: "20", remaining: "19", used: "1"},
		{zone: "limit 20/1s\nqueue 4\nalgorithm leaky_bucket", policy: `"a";q=5;w=1`, limit: "5", remaining: "4", used: "1"},
		{zone: "limit {http.request.header.N}/1m\nlimit_default 100/1m\nburst 100\nalgorithm token_bucket", policy: `"a";q=100;w=20`, limit: "100", remaining: "99", used: "1"},
		{zone: "limit 600/1m\nburst 100\nalgorithm token_bucket", policy: `"a";q=200;w=10`, limit: "200", remaining: "199", used: "1", override: 1200},
		{zone: "limit 600/1m\nburst 100\nalgorithm token_bucket", policy: `"a";q=80;w=8`, limit: "80", remaining: "79", used: "1", reserves: []any{"paying", 20}},
		{zone: "limit 100/1m\nalgorithm token_bucket", policy: `"a";q=100;w=60`, limit: "100", remaining: "99", used: "1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := reservedSite(t, &ratelimit.App{Namespace: fmt.Sprint("at once ", i)}, sitetest.ZoneBlock("a", "headers ietf kong github\n"+test.zone), test.reserves...)
			if test.override > 0 {
				sitetest.Changed(t, http.MethodPost, "/rate_limit/overrides", fmt.Sprintf(`{"zone": "a", "key": "192.0.2.1", "limit": "%d/1m", "for": "1h"}`, test.override))
			}
			h := s.Get("192.0.2.1", sitetest.Header("N", "300")).Header
			for name, want := range map[string]string{
				"Ratelimit-Policy": test.policy, "X-Ratelimit-Limit": test.limit, "X-Ratelimit-Remaining": test.remaining,
				"X-Ratelimit-Used": test.used, "Ratelimit-Limit": test.limit, "Ratelimit-Remaining": test.remaining,
			} {
				if got := h.Get(name); got != want {
					t.Errorf("%q, override %d: %s: %s, want %s", test.zone, test.override, name, got, want)
				}
			}
			if got, want := h.Get("X-Ratelimit-Limit-Minute") != "", test.limit == "100" && test.policy == `"a";q=100;w=60`; got != want {
				t.Errorf("%q: a name with a window: %v, want %v", test.zone, got, want)
			}
		})
	}
}
