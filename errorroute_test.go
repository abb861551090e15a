package ratelimit

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/redistest"
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
	config, err := adapt(fmt.Sprintf(`{
	admin off
	persist_config off
	log {
		output discard
	}
}
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
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Load(config, true); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = caddy.Stop() }()
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
		"no error routes":           {site: "rate_limit 0/1h", contentType: problem},
		"no error routes, message":  {site: "rate_limit 0/1h {\nmessage \"slow down\"\n}", contentType: "text/plain; charset=utf-8", body: "slow down"},
		"routes of another status":  {site: "rate_limit 0/1h\nhandle_errors 404 5xx {\nrespond page\n}", contentType: problem},
		"routes of this status":     {site: "rate_limit 0/1h\nhandle_errors 404 429 {\nrespond page\n}", body: "page"},
		"routes of its class":       {site: "rate_limit 0/1h\nhandle_errors 4xx {\nrespond page\n}", body: "page"},
		"routes of both":            {site: "rate_limit 0/1h\nhandle_errors 404 {\nrespond no\n}\nhandle_errors 4xx {\nrespond page\n}", body: "page"},
		"routes of all errors":      {site: "rate_limit 0/1h\nhandle_errors {\nrespond page\n}", body: "page"},
		"routes that write nothing": {site: "rate_limit 0/1h\nhandle_errors {\nheader Page yes\n}", header: "yes"},
		"another status of ours":    {site: "rate_limit 0/1h {\nstatus 420\n}\nhandle_errors 429 {\nrespond page\n}", status: 420, contentType: problem},
		"a zone by its name": {
			site: "rate_limit {\n" + zoneBlock("routed", "limit 0/1h") + "}\nhandle_errors {\n@z `{http.rate_limit.exceeded.name} == \"routed\"`\nrespond @z page\n}",
			body: "page",
		},
		"another zone by its name": {
			site:        "rate_limit {\n" + zoneBlock("routed", "limit 0/1h") + "}\nhandle_errors {\n@z `{http.rate_limit.exceeded.name} == \"other\"`\nrespond @z page\n}",
			contentType: problem,
		},
	} {
		t.Run(name, c.check)
	}
}

// Routes of errors that match by their path see the request as it came.
func TestErrorRoutesOfAPath(t *testing.T) {
	for name, c := range map[string]routedDenial{
		"a path that is another":  {site: "rate_limit 0/1h\nhandle_errors {\n@api path /api/*\nhandle @api {\nrespond page\n}\n}", contentType: problem},
		"a path that is this one": {site: "rate_limit 0/1h\nhandle_errors {\n@api path /api/*\nhandle @api {\nrespond page\n}\n}", path: "/api/x", body: "page"},
		"a path before it was rewritten": {
			site: "rewrite * /internal\nrate_limit 0/1h\nhandle_errors {\n@api path /api/*\nhandle @api {\nrespond page\n}\n}", path: "/api/x", body: "page",
		},
		"a path after it was rewritten": {
			site: "rewrite * /api/x\nrate_limit 0/1h\nhandle_errors {\n@api path /api/*\nhandle @api {\nrespond page\n}\n}", contentType: problem,
		},
		"one of a group": {
			site: "rate_limit 0/1h\nhandle_errors {\nhandle /api/* {\nrespond api\n}\nhandle {\nroute /x {\nrespond x\n}\n}\n}", contentType: problem,
		},
		"the rest of a group": {
			site: "rate_limit 0/1h\nhandle_errors {\nhandle /api/* {\nrespond api\n}\nhandle {\nrespond page\n}\n}", body: "page",
		},
	} {
		t.Run(name, c.check)
	}
}
