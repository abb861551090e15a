package statuspage_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/statuspage"
)

// A site is a Caddy in this process with a page at /limits.
type site struct {
	t    *testing.T
	base string
}

// serve runs a site with options of the page, options of its server, and zones.
func serve(t *testing.T, server, page, zones string, matchers ...string) site {
	t.Helper()
	return serveSites(t, server, fmt.Sprintf(`:{port} {
		handle /limits {
			rate_limit_status %s
		}
		handle {
			%s
			rate_limit {
				%s
			}
			respond ok
		}
	}`, page, strings.Join(matchers, "\n"), zones))
}

// serveSites runs sites, in whose text {port} is the port, with options of their server.
func serveSites(t *testing.T, server, sites string) site {
	t.Helper()
	port := redistest.FreePort(t)
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt(fmt.Appendf(nil, `{
		admin off
		persist_config off
		auto_https off
		servers {
			protocols h1
			%s
		}
		log {
			level ERROR
		}
	}
	%s`, server, strings.ReplaceAll(sites, "{port}", strconv.Itoa(port))), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Load(config, true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	})
	return site{t, "http://127.0.0.1:" + strconv.Itoa(port)}
}

// get asks for a path with headers as name and value in turn. A name may come again.
func (s site) get(method, path string, headers ...string) (*http.Response, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.base+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Add(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response, string(body)
}

func (s site) view() (v statuspage.View) {
	s.t.Helper()
	_, body := s.get("GET", "/limits", "Accept", "application/json")
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		s.t.Fatalf("%v: %s", err, body)
	}
	return v
}

// zone is one of 5/30d for each address, with a name.
func zone(name, options string) string {
	return fmt.Sprintf("zone %q {\nlimit 5/30d\n%s\n}\n", name, options)
}

func TestWhoMaySeeThePage(t *testing.T) {
	for _, test := range []struct {
		name, server, page string
		headers            []string
		want               int
		says               string
	}{
		{name: "this machine", want: 200},
		{name: "by a name of it", headers: []string{"Host", "localhost:80"}, want: 200},
		{name: "by a name that may be anybody's", headers: []string{"Host", "rebound.example"}, want: 403, says: "may be another machine's name"},
		{name: "a proxy that is not trusted", headers: []string{"X-Forwarded-For", "127.0.0.1"}, want: 403, says: "Set trusted_proxies"},
		{name: "another header of one", headers: []string{"Forwarded", "for=127.0.0.1"}, want: 403, says: "sends Forwarded"},
		{name: "an empty header before the one of a proxy", headers: []string{"X-Forwarded-For", "", "X-Forwarded-For", "192.0.2.7"}, want: 403, says: "sends X-Forwarded-For"},
		{name: "an empty header that a proxy leaves alone", headers: []string{"Forwarded", ""}, want: 403, says: "sends Forwarded"},
		{name: "the header of a CDN", headers: []string{"CF-Connecting-IP", "192.0.2.7"}, want: 403, says: "sends Cf-Connecting-Ip"},
		{name: "the header of another one", headers: []string{"True-Client-IP", "192.0.2.7"}, want: 403, says: "sends True-Client-Ip"},
		{name: "a proxy that tells of itself", headers: []string{"Via", "1.1 proxy"}, want: 403, says: "sends Via"},
		{name: "a header that the server knows", server: "client_ip_headers X-Visitor", headers: []string{"X-Visitor", "192.0.2.7"}, want: 403, says: "sends X-Visitor"},
		{name: "any proxy where everybody may", page: "{\nallow all\n}", headers: []string{"Via", "1.1 proxy", "X-Forwarded-For", "192.0.2.7"}, want: 200},
		{name: "this machine where others may", page: "{\nallow 203.0.113.0/24\n}", want: 403, says: "127.0.0.1 may not see"},
		{name: "this machine where it may as well", page: "{\nallow 203.0.113.0/24 127.0.0.1\n}", want: 200},
		{name: "this machine where private networks may", page: "{\nallow private\n}", want: 200},
		{name: "anybody's name where private networks may", page: "{\nallow private\n}", headers: []string{"Host", "rebound.example"}, want: 403, says: "may be another machine's name"},
		{name: "anybody's name where everybody may", page: "{\nallow all\n}", headers: []string{"Host", "rebound.example"}, want: 200},
		{name: "a client from elsewhere", server: "trusted_proxies static 127.0.0.1", headers: []string{"X-Forwarded-For", "192.0.2.7"}, want: 403, says: "192.0.2.7 may not see"},
		{name: "a client that is allowed", server: "trusted_proxies static 127.0.0.1", page: "{\nallow 192.0.2.0/24\n}", headers: []string{"X-Forwarded-For", "192.0.2.7"}, want: 200},
		{name: "a client that is allowed, by anybody's name", server: "trusted_proxies static 127.0.0.1", page: "{\nallow 192.0.2.0/24\n}", headers: []string{"X-Forwarded-For", "192.0.2.7", "Host", "rebound.example"}, want: 403, says: "may be another machine's name"},
		{name: "no client behind a trusted proxy", server: "trusted_proxies static 127.0.0.1", page: "{\nallow 192.0.2.0/24\n}", headers: []string{"X-Forwarded-For", "unknown"}, want: 403, says: "127.0.0.1 may not see"},
		{name: "a client in a private network", server: "trusted_proxies static 127.0.0.1", page: "{\nallow private\n}", headers: []string{"X-Forwarded-For", "10.1.2.3"}, want: 200},
		{name: "one outside of it", server: "trusted_proxies static 127.0.0.1", page: "{\nallow private\n}", headers: []string{"X-Forwarded-For", "2001:db8::1"}, want: 403, says: "2001:db8::1 may not see"},
		{name: "a client that wrote an address before its own", server: "trusted_proxies static 127.0.0.1", page: "{\nallow private\n}", headers: []string{"X-Forwarded-For", "10.1.2.3, 192.0.2.7"}, want: 403, says: "Set trusted_proxies_strict"},
		{name: "the same in a line of its own", server: "trusted_proxies static 127.0.0.1", page: "{\nallow private\n}", headers: []string{"X-Forwarded-For", "10.1.2.3", "X-Forwarded-For", "192.0.2.7"}, want: 403, says: "Set trusted_proxies_strict"},
		{name: "where the last address counts", server: "trusted_proxies static 127.0.0.1\ntrusted_proxies_strict", page: "{\nallow private\n}", headers: []string{"X-Forwarded-For", "10.1.2.3, 192.0.2.7"}, want: 403, says: "192.0.2.7 may not see"},
		{name: "one that is allowed there", server: "trusted_proxies static 127.0.0.1\ntrusted_proxies_strict", page: "{\nallow private\n}", headers: []string{"X-Forwarded-For", "192.0.2.7, 10.1.2.3"}, want: 200},
		{name: "everybody", server: "trusted_proxies static 127.0.0.1", page: "{\nallow all\n}", headers: []string{"X-Forwarded-For", "2001:db8::1"}, want: 200},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := serve(t, test.server, test.page, zone("api", ""))
			response, body := s.get("GET", "/limits", test.headers...)
			if response.StatusCode != test.want || !strings.Contains(body, test.says) {
				t.Errorf("status %d, want %d and %q: %s", response.StatusCode, test.want, test.says, body)
			}
			if csp := response.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
				t.Errorf("the policy is %q", csp)
			}
		})
	}
}

// A page by a name that stands in the configuration cannot be another one's, whose name was
// resolved to this machine. The name may stand with a route around the page, or with one that
// invokes it.
func TestNamesOfThePage(t *testing.T) {
	const page = "rate_limit_status /limits {\nallow private\n}\n"
	for name, test := range map[string]struct{ sites, server string }{
		"a site's address":         {sites: "http://limits.example:{port} {\n" + page + "}"},
		"one with a wildcard":      {sites: "http://*.example:{port} {\n" + page + "}"},
		"a matcher":                {sites: ":{port} {\n@by host limits.example\nhandle @by {\n" + page + "}\n}"},
		"a matcher of a matcher":   {sites: ":{port} {\n@by {\npath /limits\nhost limits.example\n}\nroute {\nroute @by {\n" + page + "}\n}\n}"},
		"a matcher of the handler": {sites: ":{port} {\n@by host limits.example\nrate_limit_status @by {\nallow private\n}\n}"},
		"a named route":            {sites: "&(page) {\n" + page + "}\nhttp://limits.example:{port} {\ninvoke page\n}\nhttp://:{port} {\ninvoke page\n}"},
		"within a named route":     {sites: "&(page) {\n@by host limits.example\nroute @by {\n" + page + "}\n}\nhttp://:{port} {\ninvoke page\n}"},
		"an error route":           {sites: "http://:{port} {\nerror 404\nhandle_errors {\n@by host limits.example\nroute @by {\n" + page + "}\n}\n}"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveSites(t, test.server, test.sites)
			if response, body := s.get("GET", "/limits", "Host", "limits.example"); response.StatusCode != 200 || !strings.Contains(body, "<h1>Rate limits") {
				t.Errorf("by its name: status %d: %.300s", response.StatusCode, body)
			}
			for _, host := range []string{"rebound.test", "limits.example.test"} {
				if response, body := s.get("GET", "/limits", "Host", host); strings.Contains(body, "<h1>Rate limits") {
					t.Errorf("by %s: status %d: %.300s", host, response.StatusCode, body)
				}
			}
		})
	}
	// These matchers have no name.
	for _, host := range []string{"*.*", "{http.request.host}"} {
		s := serveSites(t, "", ":{port} {\n@by host "+host+"\nhandle @by {\n"+page+"}\n}")
		if response, body := s.get("GET", "/limits", "Host", "rebound.test"); response.StatusCode != 403 || !strings.Contains(body, "no host matcher") {
			t.Errorf("host %s: status %d: %.300s", host, response.StatusCode, body)
		}
	}
}

func TestOptionsThatAreWrong(t *testing.T) {
	for options, want := range map[string]string{
		"private":                    "write `allow private` into a block",
		"{\nalow private\n}":         `there is no option "alow"`,
		"{\nallow\n}":                "allow needs who may see the page",
		"{\nallow 192.0.2.0/33\n}":   `"192.0.2.0/33" is no address`,
		"{\nallow example.com all\n": "", // and a brace is missing
	} {
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte("http://localhost {\nrate_limit_status "+options+"\n}"), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", options, err, want)
		}
	}
}

// The page comes before what answers a request in any case, wherever it is written.
func TestThePageComesBeforeAnAnswer(t *testing.T) {
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte("http://localhost {\nrespond ok\nrate_limit_status /limits\n}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if page, answer := bytes.Index(config, []byte("rate_limit_status")), bytes.Index(config, []byte("static_response")); page < 0 || page > answer {
		t.Errorf("the handlers are in another order: %s", config)
	}
}

// Who is banned is on the page, by the short id, and by the key where log_key lets it be seen.
func TestWhoIsBanned(t *testing.T) {
	const at = "ban 1h\nmatch {\npath /%s\n}"
	s := serve(t, "", "", zone("named", fmt.Sprintf(at, "named"))+"log_key\n}\nrate_limit {\n"+zone("unnamed", fmt.Sprintf(at, "unnamed")))
	for range 9 {
		s.get("GET", "/named")
		s.get("GET", "/unnamed")
	}
	bans := s.view().Bans
	if len(bans.Bans) != 2 || bans.More != 0 {
		t.Fatalf("banned are %+v, want a key of each zone", bans)
	}
	_, page := s.get("GET", "/limits")
	for _, b := range bans.Bans {
		row := fmt.Sprintf(`<tr><th scope="row"><code>%s</code></th><td data-label="Zone">unnamed</td>`, b.ID[:8])
		if b.Zone == "named" {
			row = fmt.Sprintf(`<tr><th scope="row">127.0.0.1 <code>%s</code></th><td data-label="Zone">named</td>`, b.ID[:8])
		}
		if !strings.Contains(page, row) || strings.Contains(page, b.ID) {
			t.Errorf("the page has no %s, or a long id:\n%s", row, page)
		}
	}
	if n := strings.Count(page, "banned: 127.0.0.1<"); n != 1 {
		t.Errorf("beside their zones %d keys are named, want 1:\n%s", n, page)
	}
}

// Who is denied most is on the page, without Redis and at once, with the key where log_key lets it
// be seen, and what only shadow mode has admitted apart.
func TestWhoIsDenied(t *testing.T) {
	const at = "match {\npath /%s\n}\n%s"
	s := serve(t, "", "", zone("named one", fmt.Sprintf(at, "named", ""))+"log_key\n}\nrate_limit {\n"+zone("unnamed", fmt.Sprintf(at, "unnamed", "enforce off")))
	for range 9 {
		s.get("GET", "/named")
		s.get("GET", "/unnamed")
	}
	denied := s.view().Denied
	if len(denied) != 2 || denied[0].Denied != 4 || denied[0].Key != "127.0.0.1" || denied[1].WouldDeny != 4 || denied[1].Denied != 0 || denied[1].Key != "" {
		t.Fatalf("denied are %+v, want 4 of a named key, and 4 of one that would be", denied)
	}
	_, page := s.get("GET", "/limits")
	for _, want := range []string{
		`<tr><th scope="row">127.0.0.1 <code>%s</code></th><td data-label="Zone">named one</td><td class="n denied" data-label="Denied">4</td><td class="n" data-label="Would deny">0</td>` +
			`<td data-label="Why"><code>caddy rate-limit explain &#39;named one&#39; %[1]s --id</code></td></tr>`,
		`<tr><th scope="row"><code>%s</code></th><td data-label="Zone">unnamed</td><td class="n" data-label="Denied">0</td><td class="n" data-label="Would deny">4</td>` +
			`<td data-label="Why"><code>caddy rate-limit explain unnamed %[1]s --id</code></td></tr>`,
	} {
		row := fmt.Sprintf(want, denied[0].ID[:8])
		if strings.Contains(want, "unnamed") {
			row = fmt.Sprintf(want, denied[1].ID[:8])
		}
		if !strings.Contains(page, row) {
			t.Errorf("the page has no %s:\n%s", row, page)
		}
	}
}

// The page can only be read, and is small however many zones there are.
func TestThePageIsSmall(t *testing.T) {
	var zones strings.Builder
	for i := range 1000 {
		zones.WriteString(zone(fmt.Sprintf("zone %d %s", i, strings.Repeat("x", 100)), ""))
	}
	s := serve(t, "", "", zones.String())
	response, body := s.get("GET", "/limits")
	if len(body) > 60_000 || !strings.Contains(body, "The busiest 50 are shown, 950 are not.") {
		t.Errorf("status %d, %d bytes: %.500s", response.StatusCode, len(body), body)
	}
	if v := s.view(); len(v.Zones) != 1000 {
		t.Errorf("the JSON has %d zones, want 1000", len(v.Zones))
	}
	if _, body := s.get("GET", "/limits?zone=ZONE+999"); !strings.Contains(body, "zone 999 ") || strings.Contains(body, "zone 998 ") {
		t.Errorf("the filter shows others: %.2000s", body)
	}
	if response, _ := s.get("POST", "/limits"); response.StatusCode != http.StatusMethodNotAllowed || response.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST gets %d", response.StatusCode)
	}
	if _, body := s.get("HEAD", "/limits"); body != "" {
		t.Errorf("HEAD gets %q", body)
	}
}

const hostile = `</th><script>document.title='owned'</script><img src=//elsewhere.example/x onerror=alert(1)>`

// options are zones of all kinds, with what the page says of them after 7 requests.
var options = map[string]struct {
	zone string
	says []string
}{
	"banned":    {zone("banned", "ban 1h"), []string{`<td class="n big denied" data-label="Banned">1</td>`, "5/30d"}},
	"unbanned":  {"zone unbanned {\nlimit 50/30d\nban 1h after 3/30d\n}\n", []string{`<td class="n big" data-label="Banned">0</td>`}},
	"slots":     {"zone slots {\nconcurrent 4\n}\n", []string{"4 at once", "<small>local</small>", "running: 0 here, 0 on other nodes"}},
	"both":      {"zone both {\nlimit 90/30d\nconcurrent 3\n}\n", []string{"90/30d, 3 at once", "<small>sliding_window, local</small>", "running: 0 here, 0 on other nodes"}},
	"downloads": {"zone downloads {\nbandwidth 1MiB/s\nenforce 50%\nkey all\n}\n", []string{"1MiB/s", "open: 0 responses, sent 0 B", ">enforced for 50%</small>"}},
	"login":     {"zone login {\nmatch {\npath /login\n}\nlimit 80/30d\ncount_responses 401\n}\n", []string{"80/30d", "<small>no request yet</small>"}},
	"guesses":   {"zone guesses {\nmatch path /*\nlimit 80/30d\ncount_responses 401\n}\n", []string{"<small>counted: 0 of 7 responses</small>"}},
	"paying":    {"@paying header X-Plan paid\nzone paying {\nkey all\nlimit 70/30d\nreserve @paying 20%\n}\n", []string{"70/30d", "reserve 20%"}},
}

// Zones of all kinds are shown with what they have, and with nothing that they don't.
func TestZonesOfAllKinds(t *testing.T) {
	for name, test := range options {
		matcher, zone := "", test.zone
		if before, after, ok := strings.Cut(zone, "\nzone "); ok {
			matcher, zone = before, "zone "+after
		}
		s := serve(t, "", "", zone, matcher)
		for range 7 {
			s.get("GET", "/")
		}
		_, page := s.get("GET", "/limits")
		row := regexp.MustCompile(`(?s)<tr><th scope="row">` + name + `.*?</tr>`).FindString(page)
		for _, want := range test.says {
			if !strings.Contains(row, want) {
				t.Errorf("%s: the row has no %s: %s", name, want, row)
			}
		}
		for _, never := range []string{"<small></small>", "<small>, ", ", </small>", "%!", "/0s", "nil", "keys: ", "reserved: 0", "synced"} {
			if strings.Contains(row, never) {
				t.Errorf("%s: the row has %s: %s", name, never, row)
			}
		}
		if strings.Contains(row, `"Banned">–<`) == strings.Contains(zone, "ban ") || strings.Contains(row, "running") != strings.Contains(zone, "concurrent") ||
			strings.Contains(row, "no request yet") != (name == "login") || strings.Contains(row, "counted: ") != (name == "guesses") {
			t.Errorf("%s: the row has what the zone has not: %s", name, row)
		}
		if v := s.view(); len(v.Zones) != 1 || v.Zones[0].Name != name || len(v.Zones[0].Policy) == 0 || v.Zones[0].MaxKeys == 0 || strings.Contains(page, "as many keys as max_keys") {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// While Redis is away the page says so once, however much fails, and not that counts are shared.
func TestThePageWithoutRedis(t *testing.T) {
	r := redistest.Start(t)
	s := serve(t, "}\nrate_limit {\nredis "+r.URL, "", "zone a {\nlimit 5/30d\n}\nzone b {\nlimit 5/30d\n}")
	const shared, lost = "Nodes share counts through Redis.", "Nodes share counts through Redis, which fails now."
	says := func(text string) bool {
		s.get("GET", "/")
		_, page := s.get("GET", "/limits")
		return strings.Contains(page, text)
	}
	redistest.Eventually(t, "the page says that counts are shared", func() bool { return says(shared) })
	r.Kill()
	redistest.Eventually(t, "the page says that this fails", func() bool { return says(lost) && !says(shared) })
	redistest.Eventually(t, "both zones and the heartbeat fail by one reason", func() bool {
		problems := s.view().Problems
		return len(problems) == 1 && strings.HasPrefix(problems[0], "Redis fails: ")
	})
}
