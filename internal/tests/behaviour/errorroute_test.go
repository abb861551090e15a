package behaviour_test

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/redistest"
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

// Error routes belong to a listener. A denial is left to them where one of them matches it, and
// answered otherwise, whatever a neighbour has.
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
	} {
		t.Run(name, c.check)
	}
}

// Routes of errors that match by their path see the request as it came.
func TestErrorRoutesOfAPath(t *testing.T) {
	for name, c := range map[string]routedDenial{
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

// A site's zones need not look whether a request has failed before.
func TestOnlyErrorRoutesAskForErrors(t *testing.T) {
	port := redistest.FreePort(t)
	sitetest.LoadSites(t, fmt.Sprintf(`
http://site.example:%d {
	bind 127.0.0.1
	handle_path /a/* {
		rate_limit {
			zone plain {
				limit 1/30d
			}
		}
	}
	handle_errors {
		rate_limit {
			zone errors {
				limit 1/30d
			}
		}
	}
}
`, port))
	for name, want := range map[string]bool{"plain": false, "errors": true} {
		if z := lifecycle.Zone(name); z == nil || z.AfterErrors != want {
			t.Errorf("zone %s: %v, want %v", name, z, want)
		}
	}
}

// A limit in a site puts the guard of answers below 400 before the error routes, and Caddy loads it
// with them.
func TestGuardIsLoaded(t *testing.T) {
	port := redistest.FreePort(t)
	sitetest.LoadSites(t, fmt.Sprintf("http://site.example:%d {\nbind 127.0.0.1\nrate_limit 1/30d\nhandle_errors {\nrespond page\n}\n}", port))
	app, err := caddy.ActiveContext().App("http")
	if err != nil {
		t.Fatal(err)
	}
	for name, server := range app.(*caddyhttp.App).Servers {
		routes := server.Errors.Routes
		if len(routes) != 2 || len(routes[0].Handlers) != 1 {
			t.Fatalf("%s has error routes %+v, want the guard before one", name, routes)
		}
		if _, ok := routes[0].Handlers[0].(*answer.BelowError); !ok {
			t.Errorf("the first error route of %s has a %T, want the guard", name, routes[0].Handlers[0])
		}
	}
}
