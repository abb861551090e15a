package behaviour_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

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
					limit 3/30d
				}
				zone explain-partner {
					match @partner
					key   {http.request.host}
					limit 1/30d
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
			forward_auth 192.0.2.1 {
				uri /plan
			}
			rate_limit 5/30d
			respond first
			rate_limit 6/30d
		}
	}
	handle {
		rate_limit {
			zone explain-rest {
				key   {http.request.host}
				limit 2/30d
			}
		}
		respond rest
	}`

// What is explained of a URL is what the next request gets, through the routes of the site.
func TestExplainThroughASite(t *testing.T) {
	l := sitetest.NewLifetime(t)
	l.Load(l.Config("", explainedSite, ""))
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
			x, err := sitetest.Explained(t, q)
			if err != nil || len(x.Handlers) != 1 {
				t.Fatalf("%s: %+v, %v", c.path, x, err)
			}
			h := x.Handlers[0]
			status, _, err := l.Post(c.path, c.header...)
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

const costlySite = `
	handle /units {
		rate_limit {
			zone explain-units {
				key   all
				limit 100/30d
				cost  {http.request.uri.query.n} * 2
				cost_default 7
			}
		}
		respond units
	}
	handle {
		rate_limit {
			zone explain-bytes {
				key   all
				limit 1kB/30d
				cost  bytes
				cost_default 10
			}
			zone explain-requests {
				key   all
				limit 1000/30d
			}
		}
		respond bytes
	}`

// costOf returns what a request is explained to cost in each zone, and what becomes of it.
func costOf(t *testing.T, path string, headers map[string]operate.HeaderValues) (costs string, decision answer.Reason) {
	t.Helper()
	x, err := sitetest.Explained(t, operate.ExplainRequest{Method: "POST", URL: "http://site" + path, Headers: headers})
	if err != nil || len(x.Handlers) != 1 {
		t.Fatalf("%s: %+v, %v", path, x, err)
	}
	for _, z := range x.Handlers[0].Zones {
		if z.Cost == nil {
			costs += "-"
		} else {
			costs += strconv.FormatInt(*z.Cost, 10)
		}
	}
	return costs, x.Handlers[0].Decision
}

// What a request costs is explained with it, and its decision is what the next one gets: by a
// number, by the length of its body, or by neither.
func TestExplainACost(t *testing.T) {
	l := sitetest.NewLifetime(t)
	l.Load(l.Config("", costlySite, ""))
	for _, c := range []struct {
		n, cost string
		want    answer.Reason
	}{{"30", "60", answer.Admitted}, {"20.3", "41", answer.Denied}, {"x", "7", answer.Admitted}, {"50.5", "101", answer.TooLarge}, {"16.5", "33", answer.Admitted}, {"0", "1", answer.Denied}} {
		cost, decision := costOf(t, "/units?n="+c.n, nil)
		if cost != c.cost || decision != c.want {
			t.Errorf("n = %s: costs %s and is %s, want %s and %s", c.n, cost, decision, c.cost, c.want)
		}
		if status, _, err := l.Post("/units?n=" + c.n); err != nil || (status == http.StatusTooManyRequests) != (c.want != answer.Admitted) {
			t.Errorf("n = %s: explained as %s, answered %d, %v", c.n, decision, status, err)
		}
	}
	for length, want := range map[string]string{"": "0-", "500": "500-", "1001": "1001-"} {
		headers := map[string]operate.HeaderValues{}
		if length != "" {
			headers["Content-Length"] = []string{length}
		}
		if cost, decision := costOf(t, "/bytes", headers); cost != want || (decision == answer.TooLarge) != (length == "1001") {
			t.Errorf("a length of %q: costs %s and is %s, want %s", length, cost, decision, want)
		}
	}
	if cost, _ := costOf(t, "/bytes", map[string]operate.HeaderValues{"Transfer-Encoding": {"chunked"}}); cost != "10-" {
		t.Errorf("a body without a length costs %s, want cost_default", cost)
	}
}

// Of a key nobody knows what its next request costs, so explain is told.
func TestExplainACostOfAKey(t *testing.T) {
	l := sitetest.NewLifetime(t)
	l.Load(l.Config("", costlySite, ""))
	if status, _, err := l.Post("/units?n=50"); err != nil || status != http.StatusOK {
		t.Fatal(status, err)
	}
	const explain = "/rate_limit/explain"
	for body, want := range map[string]string{
		`{"zone":"explain-bytes","key":"all"}`:                        `"cost":10`,
		`{"zone":"explain-bytes","key":"all","cost":1000}`:            `"decision":"admitted","zones":[{"zone":"explain-bytes","decision":"admitted","key":"all"`,
		`{"zone":"explain-bytes","key":"all","cost":1001}`:            `"cost":1001`,
		`{"zone":"explain-units","key":"all","cost":1}`:               `"decision":"denied","zone":"explain-units"`,
		`{"zone":"explain-units","key":"all","cost":0}`:               `"cost":0`,
		`{"zone":"explain-requests","key":"all","cost":5}`:            `each request takes 1 of zone "explain-requests"`,
		`{"zone":"explain-units","key":"all","cost":-1}`:              `-1 is not between 0 and 2^40`,
		`{"url":"http://a/","cost":5}`:                                `cost belong to a zone`,
		`{"url":"http://site/","headers":{"Content-Length":["two"]}}`: `"two" is no number of bytes`,
	} {
		if _, text := sitetest.Ask(http.MethodPost, explain, body); !strings.Contains(text, want) {
			t.Errorf("%s: %s, want %s", body, text, want)
		}
	}
}

// A matcher that panics on a request that no server has received is told, and what to do instead.
func TestExplainSaysThatAMatcherPanicked(t *testing.T) {
	l := sitetest.NewLifetime(t)
	l.Load(l.Config("", "@a panicking\nhandle @a {\nrate_limit 5/30d\n}", ""))
	_, err := sitetest.Explained(t, operate.ExplainRequest{URL: "http://site/"})
	if err == nil || !strings.Contains(err.Error(), "made up: no connection; ask by zone and key") {
		t.Errorf("explain says %v", err)
	}
}

// A zone that counts bytes takes sizes in overrides, and no other does.
func TestOverridesInSizes(t *testing.T) {
	l := sitetest.NewLifetime(t)
	l.Load(l.Config("", costlySite, ""))
	c := sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"explain-bytes","key":"all","limit":"2KiB/30d"}`)
	if _, decision := costOf(t, "/bytes", map[string]operate.HeaderValues{"Content-Length": {"2048"}}); c.Limit != "2048/30d" || decision != answer.Admitted {
		t.Errorf("an override of 2KiB/30d is %s, and 2048 bytes are %s", c.Limit, decision)
	}
	if c := sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"explain-bytes","key":"all","limit":"3MB"}`); c.Limit != "3000000" {
		t.Errorf("an override of 3MB is %s", c.Limit)
	}
	if status, text := sitetest.Ask(http.MethodPost, sitetest.Overrides, `{"zone":"explain-units","key":"all","limit":"2KiB/30d"}`); status != http.StatusBadRequest || !strings.Contains(text, "2KiB is a size, and zone \"explain-units\" doesn't count bytes") {
		t.Errorf("an override of 2KiB where requests have a cost: %d %s", status, text)
	}
	// For a second run of the tests.
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"explain-bytes","key":"all"}`)
}

// Handlers that are not run on the way are named, and nothing is explained behind an answer.
func TestExplainNamesWhatItDidNotRun(t *testing.T) {
	l := sitetest.NewLifetime(t)
	l.Load(l.Config("", explainedSite, ""))
	x, err := sitetest.Explained(t, operate.ExplainRequest{URL: "http://site/ordered/x", RemoteIP: "203.0.113.9"})
	if err != nil || len(x.Handlers) != 1 || strings.Join(x.Handlers[0].NotRun, " ") != "authentication forward_auth" || x.ClientIP != "203.0.113.9" {
		t.Errorf("%+v, %v; want one handler, behind authentication and forward_auth", x, err)
	}
	if z := x.Handlers[0].Zones[0]; z.Key == nil || *z.Key != "203.0.113.9" || z.Limits[0].Limit != 5 {
		t.Errorf("%+v, want 5 for that address", z)
	}
}

func TestExplainRequestsThatNobodyCanSend(t *testing.T) {
	l := sitetest.NewLifetime(t)
	l.Load(l.Config("", "rate_limit 1/30d", ""))
	for _, c := range []struct {
		q    operate.ExplainRequest
		want string
	}{
		{operate.ExplainRequest{URL: "/login"}, `url: "/login" has no scheme and host; write it in full, like https://example.com/login`},
		{operate.ExplainRequest{URL: "ftp://site/"}, `url: "ftp://site/" has no scheme and host`},
		{operate.ExplainRequest{URL: "http://site:81/"}, "no server listens at port 81; the servers listen at"},
		{operate.ExplainRequest{URL: "http://site:81/", Headers: map[string]operate.HeaderValues{"Host": {"site"}}}, "no server listens at port 81"},
		{operate.ExplainRequest{URL: "http://site/", RemoteIP: "nobody"}, `remote_ip: "nobody" is no address`},
		{operate.ExplainRequest{URL: "http://site/", Method: "a b"}, `method: "a b" is invalid; write one like POST`},
	} {
		if _, err := sitetest.Explained(t, c.q); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.q, err, c.want)
		}
	}
}

// A request that is explained has come in at an address, as a key may say.
func TestExplainKnowsTheLocalAddress(t *testing.T) {
	l := sitetest.NewLifetime(t)
	l.Load(l.Config("", "header X-At {http.request.local}\nrate_limit {\nzone explain-local {\nkey {http.request.local.host}\nlimit 1/30d\n}\n}", ""))
	x, err := sitetest.Explained(t, operate.ExplainRequest{URL: "http://site/"})
	if err != nil || len(x.Handlers) != 1 || x.Handlers[0].Zones[0].Key == nil || *x.Handlers[0].Zones[0].Key != "127.0.0.1" {
		t.Errorf("explained as %+v, %v, want the key 127.0.0.1", x.Handlers, err)
	}
}

// What should have brought a limit or a cost and has no number is named where a URL is explained.
func TestExplainNamesWhatBringsNoNumber(t *testing.T) {
	l := sitetest.NewLifetime(t)
	l.Load(l.Config("", `
		rate_limit {
			zone explain-missing {
				key   all
				limit {http.request.header.Rpm}/30d
				limit_default 60/30d
				cost  {http.request.header.Units}
				cost_default 3
			}
		}`, ""))
	const units, rpm = "{http.request.header.Units}", "{http.request.header.Rpm}"
	for _, c := range []struct {
		rpm, units string
		missing    []string
	}{{"", "", []string{units, rpm}}, {"5", "", []string{units}}, {"unlimited", "2", nil}, {"x", "2.5", []string{rpm}}, {"5", "x", []string{units}}} {
		headers := map[string]operate.HeaderValues{"Rpm": {c.rpm}, "Units": {c.units}}
		x, err := sitetest.Explained(t, operate.ExplainRequest{URL: "http://site/", Headers: headers})
		if err != nil || len(x.Handlers) != 1 || !slices.Equal(x.Handlers[0].Zones[0].Missing, c.missing) {
			t.Errorf("%+v: explained as %+v, %v, want %q named", c, x.Handlers, err, c.missing)
		}
	}
}

// A key alone has the limit_default of a zone whose limit comes with requests, and explain says so.
func TestExplainSaysThatALimitIsTheDefault(t *testing.T) {
	sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("explain-default", "limit {http.request.header.Rpm}/30d\nlimit_default 5/30d")+sitetest.ZoneBlock("explain-fixed", "limit 5/30d"))
	for zone, want := range map[string]bool{"explain-default": true, "explain-fixed": false} {
		_, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, fmt.Sprintf(`{"zone":%q,"key":"192.0.2.1"}`, zone))
		if strings.Contains(text, `"limit_default":true`) != want || !strings.Contains(text, `"limit":5,`) {
			t.Errorf("explain %s says %s, want a limit of 5 that is the default: %t", zone, text, want)
		}
	}
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"explain-default","key":"192.0.2.1","limit":"7"}`)
	if _, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, `{"zone":"explain-default","key":"192.0.2.1"}`); strings.Contains(text, "limit_default") {
		t.Errorf("with an override explain says %s", text)
	}
	sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"explain-default","key":"192.0.2.1"}`)
}
