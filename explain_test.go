package ratelimit

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/operate"
)

// explained asks the running configuration.
func explained(t *testing.T, q operate.ExplainRequest) (operate.ExplainedSite, error) {
	t.Helper()
	app, err := caddy.ActiveContext().AppIfConfigured("http")
	if err != nil {
		t.Fatal(err)
	}
	return operate.Explain(app.(*caddyhttp.App), q)
}

// A site as people write them: groups, stripped prefixes, named matchers, variables, a named route.
const explainedSite = `
	@partner header X-Partner yes
	map {http.request.header.Plan} {tier} {
		gold    gold
		default free
	}
	handle_path /api/* {
		route {
			request_header X-Seen yes
			rate_limit {
				zone explain-api {
					match {
						path /v1/*
						header X-Seen yes
					}
					key {tier}{http.request.header.K}
					limit 3/1h
				}
				zone explain-partner {
					match @partner
					key   {http.request.host}
					limit 1/1h
				}
			}
			respond api
		}
	}
	handle /ordered/* {
		route {
			basic_auth {
				alice $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG
			}
			rate_limit 5/1h
			respond first
			rate_limit 6/1h
		}
	}
	handle {
		rate_limit {
			zone explain-rest {
				key   {http.request.host}
				limit 2/1h
			}
		}
		respond rest
	}`

// What is explained of a URL is what the next request gets, through the routes of the site.
func TestExplainThroughASite(t *testing.T) {
	l := newLifetime(t)
	l.load(l.config("", explainedSite, ""))
	for _, c := range []struct {
		path   string
		header []string
		limit  int
		zones  string
	}{
		{"/api/v1/x", []string{"K", "a", "Plan", "gold"}, 3, "explain-api denied, explain-partner skipped"},
		{"/api/v1/x", []string{"K", "a"}, 3, "explain-api denied, explain-partner skipped"},
		{"/api/v1/x", []string{"K", "b", "X-Partner", "yes"}, 1, "explain-api admitted, explain-partner denied"},
		{"/api/v2/x", []string{"K", "a"}, 0, "explain-api skipped, explain-partner skipped"},
		{"/other", nil, 2, "explain-rest denied"},
	} {
		q := operate.ExplainRequest{Method: "post", URL: "http://site" + c.path, Headers: map[string]operate.HeaderValues{}}
		for i := 0; i+1 < len(c.header); i += 2 {
			q.Headers[c.header[i]] = []string{c.header[i+1]}
		}
		for i := range 5 {
			x, err := explained(t, q)
			if err != nil || len(x.Handlers) != 1 {
				t.Fatalf("%s: %+v, %v", c.path, x, err)
			}
			h := x.Handlers[0]
			status, _, err := l.post(c.path, c.header...)
			if err != nil {
				t.Fatal(err)
			}
			if denied := h.Decision == answer.Denied; denied != (status == http.StatusTooManyRequests) {
				t.Errorf("%s, request %d: explained as %s, answered %d", c.path, i, h.Decision, status)
			}
			if i < c.limit {
				continue
			}
			var zones []string
			for _, z := range h.Zones {
				zones = append(zones, fmt.Sprint(z.Zone, " ", z.Decision))
			}
			if got := strings.Join(zones, ", "); got != c.zones {
				t.Errorf("%s %v: %s, want %s", c.path, c.header, got, c.zones)
			}
		}
	}
}

// Handlers that are not run on the way are named, and nothing is explained behind an answer.
func TestExplainNamesWhatItDidNotRun(t *testing.T) {
	l := newLifetime(t)
	l.load(l.config("", explainedSite, ""))
	x, err := explained(t, operate.ExplainRequest{URL: "http://site/ordered/x", RemoteIP: "203.0.113.9"})
	if err != nil || len(x.Handlers) != 1 || strings.Join(x.Handlers[0].NotRun, " ") != "authentication" || x.ClientIP != "203.0.113.9" {
		t.Errorf("%+v, %v; want one handler, behind authentication", x, err)
	}
	if z := x.Handlers[0].Zones[0]; z.Key != "203.0.113.9" || z.Limits[0].Limit != 5 {
		t.Errorf("%+v, want 5 for that address", z)
	}
}

func TestExplainRequestsThatNobodyCanSend(t *testing.T) {
	l := newLifetime(t)
	l.load(l.config("", "rate_limit 1/1h", ""))
	for _, c := range []struct {
		q    operate.ExplainRequest
		want string
	}{
		{operate.ExplainRequest{URL: "/login"}, `url: "/login" has no scheme and host; write it in full, like https://example.com/login`},
		{operate.ExplainRequest{URL: "ftp://site/"}, `url: "ftp://site/" has no scheme and host`},
		{operate.ExplainRequest{URL: "http://site:81/"}, "no server listens at port 81; the servers listen at"},
		{operate.ExplainRequest{URL: "http://site/", RemoteIP: "nobody"}, `remote_ip: "nobody" is no address`},
		{operate.ExplainRequest{URL: "http://site/", Method: "a b"}, `method: "a b" is none`},
	} {
		if _, err := explained(t, c.q); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.q, err, c.want)
		}
	}
}
