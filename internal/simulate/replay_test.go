package simulate_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile" // reads Caddyfiles
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/standard"
	_ "github.com/caddyserver/caddy/v2/modules/logging"

	_ "github.com/caddy-tide/ratelimit" // is replayed
	"github.com/caddy-tide/ratelimit/internal/accesslog"
	"github.com/caddy-tide/ratelimit/internal/rates"
	"github.com/caddy-tide/ratelimit/internal/simulate"
)

// asked is a request of a log.
type asked struct {
	at           float64 // seconds since the beginning
	client, path string
	host         string
	status       int
}

const begin = 1_700_000_000

// json is a line of Caddy's log.
func (a asked) json(fields string) string {
	return fmt.Sprintf(`{"ts":%.6f,"logger":"http.log.access","request":{"remote_ip":"%s","client_ip":"%[2]s","method":"GET","host":"%s","uri":"%s"%s},"duration":0,"status":%d}`+"\n",
		begin+a.at, a.client, a.host, a.path, fields, a.status)
}

// combined is a line in the Combined Log Format.
func (a asked) combined() string {
	return fmt.Sprintf(`%s - - [%s] "GET %s HTTP/1.1" %d 17 "-" "agent"`+"\n", a.client, time.Unix(begin+int64(a.at), 0).UTC().Format("02/Jan/2006:15:04:05 -0700"), a.path, a.status)
}

// traffic is requests of some clients, of which the first ones send the most.
func traffic(n int) (all []asked) {
	rng := rand.New(rand.NewPCG(3, 4))
	at := 0.
	for range n {
		at += .001 + rng.ExpFloat64()/20
		k := int(40 * rng.Float64() * rng.Float64() * rng.Float64())
		all = append(all, asked{at, fmt.Sprintf("203.0.113.%d", k), []string{"/", "/login", "/api"}[rng.IntN(3)], "example.com", []int{200, 200, 200, 404, 502}[rng.IntN(5)]})
	}
	return all
}

func jsonLog(all []asked) string {
	var b strings.Builder
	for _, a := range all {
		b.WriteString(a.json(""))
	}
	return b.String()
}

// oneZone is a configuration of one limit.
func oneZone(t testing.TB, limit int, options string) []byte {
	t.Helper()
	zone := map[string]any{}
	if err := json.Unmarshal(fmt.Appendf(nil, `{"limits":[{"max_events":%d,"window":"10s"}]%s}`, limit, options), &zone); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(simulate.OneZone("limit", zone))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func run(t *testing.T, config []byte, o simulate.Options, logs ...string) (*simulate.Report, error) {
	t.Helper()
	p, err := simulate.Load(config)
	if err != nil {
		return nil, err
	}
	f, err := accesslog.Open([]string{"-"}, strings.NewReader(strings.Join(logs, "")))
	if err != nil {
		return nil, err
	}
	o.Reorder = time.Minute
	return simulate.Run(p, f, o)
}

func mustRun(t *testing.T, config []byte, o simulate.Options, logs ...string) *simulate.Report {
	t.Helper()
	r, err := run(t, config, o, logs...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// kinds are options of all algorithms.
var kinds = map[string]string{
	"fixed_window": `,"algorithm":"fixed_window"`, "sliding_window": `,"algorithm":"sliding_window"`, "count_denied": `,"count_denied":true,"buckets":5`,
	"sliding_log": `,"algorithm":"sliding_log"`, "token_bucket": `,"algorithm":"token_bucket"`, "gcra": `,"algorithm":"gcra"`, "leaky_bucket": `,"algorithm":"leaky_bucket","queue":100`,
}

// What a candidate is said to touch is what that limit would have denied.
func TestCandidatesAreTrue(t *testing.T) {
	log := jsonLog(traffic(3000))
	for name, options := range kinds {
		w := mustRun(t, oneZone(t, 100, options), simulate.Options{}, log).Zones[0].Windows[0]
		if len(w.Candidates) != 7 || w.NotFollowed != 0 {
			t.Fatalf("%s: %+v", name, w)
		}
		touched := int64(0)
		for _, c := range w.Candidates {
			one := options
			if name == "leaky_bucket" { // whose queue keeps its ratio to the limit
				one = strings.Replace(options, "100", fmt.Sprint(c.Limit), 1)
			}
			z := mustRun(t, oneZone(t, int(c.Limit), one), simulate.Options{}, log).Zones[0]
			off := max(z.Denied-c.Requests, c.Requests-z.Denied)
			if name == "sliding_log" {
				off -= z.Denied / 12 // sub-windows stand in for a log
			}
			if z.DeniedClients != c.Clients && c.Clients < 10 || off > 1+z.Denied/100 {
				t.Errorf("%s: %d in 10s is said to touch %d clients and %d requests; it denies %d and %d", name, c.Limit, c.Clients, c.Requests, z.DeniedClients, z.Denied)
			}
			touched += c.Requests
		}
		if touched == 0 {
			t.Errorf("%s: no candidate touches anybody", name)
		}
	}
}

// However many nodes there are: where each client goes to one of them, or Redis decides, they deny
// what one does; where they sync they come near it; where they don't, less is denied. How near is
// the sync's doing; internal/cluster holds a replay to what real nodes do.
func TestNodes(t *testing.T) {
	log := jsonLog(traffic(3000))
	rate := func(s string) *rates.SyncRate {
		r, err := rates.ParseSyncRate(s)
		if err != nil {
			t.Fatal(err)
		}
		return &r
	}
	for name, options := range kinds {
		one := mustRun(t, oneZone(t, 20, options), simulate.Options{}, log).Zones[0].Denied
		denied := func(o simulate.Options) int64 {
			o.Nodes = 3
			return mustRun(t, oneZone(t, 20, options), o, log).Zones[0].Denied
		}
		if got := denied(simulate.Options{SyncRate: rate("strict")}); got != one {
			t.Errorf("%s: with strict 3 nodes deny %d, one %d", name, got, one)
		}
		if got := denied(simulate.Options{SyncRate: rate("local"), ByClient: true}); got != one {
			t.Errorf("%s: where clients stay on a node 3 nodes deny %d, one %d", name, got, one)
		}
		synced, local := denied(simulate.Options{SyncRate: rate("200ms")}), denied(simulate.Options{SyncRate: rate("local")})
		if one < 50 || float64(max(synced-one, one-synced)) > .1*float64(one) || local > one*3/4 {
			t.Errorf("%s: one node denies %d, 3 that sync %d, and 3 that don't %d", name, one, synced, local)
		}
	}
}

// Long silence changes nothing, and costs nothing: it is skipped.
func TestNodesAfterSilence(t *testing.T) {
	all := traffic(1000)
	far := traffic(1000)
	for i := range far {
		far[i].at += 300 * 86400
	}
	config, o := oneZone(t, 20, ""), simulate.Options{Nodes: 3}
	once, twice := mustRun(t, config, o, jsonLog(all)).Zones[0], mustRun(t, config, o, jsonLog(all), jsonLog(far)).Zones[0]
	if once.Denied < 10 || max(twice.Denied-2*once.Denied, 2*once.Denied-twice.Denied) > 2+once.Denied/10 {
		t.Errorf("once %d are denied, twice %d", once.Denied, twice.Denied)
	}
}

// Another format of the same requests gives the same, but for what it does not tell: the second is
// all that the Combined Log Format has.
func TestFormatsAgree(t *testing.T) {
	all := traffic(3000)
	var text strings.Builder
	for i := range all {
		all[i].at = float64(int(all[i].at))
		text.WriteString(all[i].combined())
	}
	for name, options := range kinds {
		a := mustRun(t, oneZone(t, 20, options), simulate.Options{}, jsonLog(all))
		b := mustRun(t, oneZone(t, 20, options), simulate.Options{}, text.String())
		if a.Requests != b.Requests || a.Clients != b.Clients || a.Zones[0].Denied != b.Zones[0].Denied || a.Zones[0].Denied == 0 {
			t.Errorf("%s: %d of %d requests in JSON, %d of %d in the other format", name, a.Zones[0].Denied, a.Requests, b.Zones[0].Denied, b.Requests)
		}
		if len(b.Bias) != len(a.Bias)+1 {
			t.Errorf("%s: of a log without fractions of seconds it says %q", name, b.Bias)
		}
	}
}

// caddyfile adapts a Caddyfile.
func caddyfile(t *testing.T, text string) []byte {
	t.Helper()
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatal(err)
	}
	return config
}

const sites = `
{
	email admin@example.com
	rate_limit {
		redis {
			address 192.0.2.1:6379
			password {env.NO_SUCH_VARIABLE}
			tls_enabled
		}
	}
}
example.com {
	tls /no/such/cert.pem /no/such/key.pem
	log {
		output file /no/such/directory/log
	}
	@api path /api/*
	route {
		map {header.X-Plan} {rpm} {
			gold    100
			default 2
		}
		rate_limit {
			zone login {
				match {
					path /login
				}
				limit 3/1m
			}
			zone plan {
				match {
					path /plan
				}
				key   {header.X-User}
				limit {rpm}/1m
				limit_default 1/1m
			}
		}
		reverse_proxy 192.0.2.1:80 {
			health_uri /
		}
	}
}
other.example.com {
	handle_path /v1/* {
		rate_limit {
			zone other {
				match {
					path /api
				}
				limit 1/1m
			}
		}
	}
	respond "hello"
}
`

// Requests come to the limits of their site, and only to those that match; what a configuration
// has beside them is left alone.
func TestConfiguration(t *testing.T) {
	var log strings.Builder
	for i := range 10 {
		at := float64(i)
		for _, a := range []asked{
			{at, "203.0.113.1", "/login", "example.com", 200}, {at, "203.0.113.1", "/", "example.com", 200},
			{at, "203.0.113.1", "/v1/api", "other.example.com", 404}, {at, "203.0.113.1", "/api", "other.example.com", 200},
			{at, "203.0.113.1", "/login", "third.example.com", 200},
		} {
			log.WriteString(a.json(""))
		}
		log.WriteString(asked{at, "203.0.113.2", "/plan", "example.com", 200}.json(`,"headers":{"X-Plan":["gold"],"X-User":["a"]}`))
		log.WriteString(asked{at, "203.0.113.2", "/plan", "example.com", 200}.json(`,"headers":{"X-User":["b"]}`))
	}
	r := mustRun(t, caddyfile(t, sites), simulate.Options{}, log.String())
	want := map[string][2]int64{"login": {10, 7}, "plan": {20, 8}, "other": {10, 9}}
	if len(r.Zones) != len(want) || r.Requests != 70 || r.Reached != 50 {
		t.Errorf("%d of %d requests came to %d zones", r.Reached, r.Requests, len(r.Zones))
	}
	for _, z := range r.Zones {
		if got := [2]int64{z.Requests, z.Denied}; got != want[z.Zone] {
			t.Errorf("zone %s: %v, want %v", z.Zone, got, want[z.Zone])
		}
	}
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "20 of 70 requests come to no rate_limit") {
		t.Errorf("it warns of %q", r.Warnings)
	}
	if r = mustRun(t, caddyfile(t, sites), simulate.Options{Zone: "login"}, log.String()); len(r.Zones) != 1 || r.Zones[0].Denied != 7 {
		t.Errorf("of one zone: %+v", r.Zones)
	}
	if _, err := run(t, caddyfile(t, sites), simulate.Options{Zone: "logn"}, log.String()); err == nil || !strings.Contains(err.Error(), `no zone "logn"`) {
		t.Errorf("of a zone that is not there: %v", err)
	}
}

// What can't be replayed is refused, or warned of with the reason.
func TestWhatCannotBeReplayed(t *testing.T) {
	line := asked{0, "203.0.113.1", "/", "example.com", 200}
	for key, want := range map[string]string{"{http.request.body}": "bodies", "{http.auth.user.email}": "id only", "{http.request.tls.client.subject}": "certificates"} {
		if _, err := run(t, oneZone(t, 5, fmt.Sprintf(`,"key":%q`, key)), simulate.Options{}, line.json("")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("key %s: %v, want %s", key, err, want)
		}
	}
	site := func(zone string) []byte {
		return fmt.Appendf(nil, `{"logging":{"logs":{"default":{}}},"apps":{"http":{"servers":{"s":{"listen":[":80"],"routes":[{"handle":[{"handler":"rate_limit","rate_limits":{"z":%s}}]}]}}}}}`, zone)
	}
	limited := `{"limits":[{"max_events":5,"window":"1m"}]`
	for name, test := range map[string]struct {
		config []byte
		log    string
		want   string
	}{
		"concurrent": {site(limited + `,"concurrent":4}`), line.json(""), "concurrent is not replayed"},
		"bandwidth":  {site(limited + `,"bandwidth":"1MiB/s"}`), line.json(""), "bandwidth is not replayed"},
		"sampled":    {[]byte(strings.Replace(string(site(limited+"}")), `"default":{}`, `"default":{"sampling":{"first":1}}`, 1)), line.json(""), "is sampled"},
		"redacted":   {site(limited + `,"key":"{http.request.header.Authorization}"}`), line.json(`,"headers":{"Authorization":["REDACTED"]}`), "redacted"},
		"cookie":     {site(limited + `,"key":"{http.request.cookie.session}"}`), line.json(`,"headers":{"Cookie":["REDACTED"]}`), "redacted"},
		"no header":  {site(limited + `,"key":"{http.request.header.X-Key}"}`), line.combined(), "without the header"},
		"reacted":    {site(limited + "}"), asked{0, "203.0.113.1", "/", "example.com", 429}.json(""), "had reacted"},
		"response":   {site(limited + `,"count_responses":{"headers":{"X":["y"]}}}`), line.json(""), "headers of responses"},
	} {
		r, err := run(t, test.config, simulate.Options{}, test.log)
		if err != nil || !strings.Contains(strings.Join(r.Warnings, "\n"), test.want) {
			t.Errorf("%s: %+v, %v, want %s", name, r, err, test.want)
		}
	}
	for name, test := range map[string]struct{ config, log, want string }{
		"empty":       {string(site(limited + "}")), "", "the log has no request"},
		"not a log":   {string(site(limited + "}")), "hello\n", "neither JSON nor"},
		"other lines": {string(site(limited + "}")), `{"level":"info","msg":"x"}`, "access log"},
		"no limit":    {`{"apps":{"http":{"servers":{"s":{"listen":[":80"]}}}}}`, line.json(""), "has no rate_limit"},
		"no config":   {`{`, line.json(""), "reading the configuration"},
		"bad limit":   {string(site(`{"limits":[]}`)), line.json(""), "loading the configuration"},
	} {
		if _, err := run(t, []byte(test.config), simulate.Options{}, test.log); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
}

// The user's id that a log has is the one that keys see.
func TestUserOfTheLog(t *testing.T) {
	var log string
	for i := range 10 {
		log += strings.Replace(asked{float64(i), fmt.Sprintf("203.0.113.%d", i), "/", "example.com", 200}.json(""), `"duration"`, fmt.Sprintf(`"user_id":"u%d","duration"`, i%2), 1)
	}
	z := mustRun(t, oneZone(t, 2, `,"key":"{http.auth.user.id}"`), simulate.Options{}, log).Zones[0]
	if z.Clients != 2 || z.Denied != 6 {
		t.Errorf("of two users with 5 requests each: %+v", z)
	}
}

// Nothing that a log holds comes into the page as anything but text, and keys only if asked for.
func TestHostileLog(t *testing.T) {
	evil := `<script>alert(1)</script>\u001b[31m\u202e\"'>`
	var log string
	for i := range 30 {
		log += asked{float64(i) / 10, "203.0.113.1", "/" + fmt.Sprint(i), "example.com", 200}.json(`,"headers":{"X-Key":["` + evil + `"]}`)
	}
	config := oneZone(t, 5, `,"key":"{http.request.header.X-Key}"`)
	for _, show := range []bool{false, true} {
		r := mustRun(t, config, simulate.Options{ShowKeys: show}, log)
		r.Read.Damaged, r.Read.Troubles = 1, []simulate.Trouble{{File: "a\x1b[31m\u202e<script>", Line: 7, Why: "why"}}
		page, err := r.HTML()
		if err != nil {
			t.Fatal(err)
		}
		if r.Zones[0].Denied != 25 || strings.Contains(r.Zones[0].Top[0].Key, "alert") != show {
			t.Errorf("%+v", r.Zones[0])
		}
		for _, raw := range []string{"<script", "\x1b", "\u202e", "http://", "https://", "javascript:"} {
			if strings.Contains(string(page), raw) {
				t.Errorf("the page has %q", raw)
			}
		}
		if !strings.Contains(string(page), "data:image/svg") || len(page) > 200<<10 {
			t.Errorf("the page has %d bytes", len(page))
		}
	}
}

// One request that stands for all is as good as one for each: nothing of a record is left for the
// next one.
func TestNothingIsLeftOfARequest(t *testing.T) {
	var log strings.Builder
	rng := rand.New(rand.NewPCG(5, 6))
	pick := func(all ...string) string { return all[rng.IntN(len(all))] }
	for i := range 2000 {
		a := asked{float64(i) / 50, fmt.Sprintf("203.0.113.%d", rng.IntN(3)), pick("/", "/login", "/login?a", "nowhere"), pick("example.com", "example.com", "", "other.example.com"), 200}
		line := a.json(pick("", `,"headers":{"X-Key":["a"],"Cookie":["s=1"]}`, `,"headers":{"X-Key":["b"]}`, `,"tls":{"version":772}`))
		switch rng.IntN(8) {
		case 0:
			line = a.combined()
		case 1: // as nginx has it: without the client's address as the server took it
			line = strings.Replace(line, `"client_ip":"`+a.client+`",`, "", 1)
		case 2:
			line = strings.Replace(line, `"duration"`, `"user_id":"`+pick("u", "v")+`","duration"`, 1)
		}
		log.WriteString(line)
	}
	for _, zone := range []string{
		`{"limits":[{"max_events":20,"window":"10s"}]}`,
		`{"limits":[{"max_events":9,"window":"10s"}],"key":"{http.auth.user.id}"}`,
		`{"limits":[{"max_events":9,"window":"10s"}],"key":"{http.request.header.X-Key} {http.request.host}","empty_key":"deny"}`,
		`{"limits":[{"max_events":9,"window":"10s"}],"key":"{http.request.cookie.s}"}`,
		`{"limits":[{"max_events":20,"window":"10s"}],"match":[{"path":["/login"],"method":["GET"],"host":["example.com"]}],"except":[{"client_ip":{"ranges":["203.0.113.1"]}}]}`,
		`{"limits":[{"max_events":20,"window":"10s"}],"match":[{"remote_ip":{"ranges":["203.0.113.1","203.0.113.2"]}}],"key":"{http.request.remote.host} {http.request.uri.path}"}`,
	} {
		config := fmt.Appendf(nil, `{"apps":{"http":{"servers":{"s":{"listen":[":80"],"routes":[{"handle":[{"handler":"rate_limit","rate_limits":{"z":%s}}]}]}}}}}`, zone)
		var reports [2]string
		for i := range reports {
			p, err := simulate.Load(config)
			if err != nil {
				t.Fatal(err)
			}
			if i == 1 && !p.MakeEach() {
				t.Errorf("%s: each record has a request of its own", zone)
			}
			f, err := accesslog.Open([]string{"-"}, strings.NewReader(log.String()))
			if err != nil {
				t.Fatal(err)
			}
			r, err := simulate.Run(p, f, simulate.Options{ShowKeys: true, Reorder: time.Minute})
			if err != nil || r.Zones[0].Denied == 0 || r.Zones[0].Denied == r.Requests {
				t.Fatalf("%s: %v, %+v", zone, err, r)
			}
			text, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			reports[i] = string(text)
		}
		if reports[0] != reports[1] {
			t.Errorf("%s:\n%s\none request for each:\n%s", zone, reports[0], reports[1])
		}
	}
}
