// no clock: what is replayed has the time of its log.

package simulate_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile" // reads Caddyfiles
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/standard"
	_ "github.com/caddyserver/caddy/v2/modules/logging"

	_ "github.com/caddy-tide/ratelimit" // is replayed
	"github.com/caddy-tide/ratelimit/internal/accesslog"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/redistest"
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
func oneZone(t *testing.T, limit int, options string) []byte {
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
	"fixed_window": `,"algorithm":"fixed_window"`, "sliding_window": `,"algorithm":"sliding_window"`, "count_denied": `,"count_denied":true,"sub_windows":5`,
	"sliding_log": `,"algorithm":"sliding_log"`, "token_bucket": `,"algorithm":"token_bucket"`, "gcra": `,"algorithm":"gcra"`, "leaky_bucket": `,"algorithm":"leaky_bucket","queue":100`,
}

// What a candidate is said to touch is what that limit would have denied.
func TestCandidatesAreTrue(t *testing.T) { candidatesAreTrue(t, simulate.Options{}, "", kinds) }

// So it is where requests cost from nothing to 12 units.
func TestCandidatesAreTrueOfCosts(t *testing.T) {
	costly := maps.Clone(kinds)
	delete(costly, "count_denied") // which can't be combined
	for name := range costly {
		costly[name] += `,"cost":[{"units":"` + simulate.CostInLog + `"}],"cost_default":1`
	}
	candidatesAreTrue(t, simulate.Options{CostField: "Units"}, `},"units":["%d"],"rest":{"a":1`, costly)
}

func candidatesAreTrue(t *testing.T, o simulate.Options, field string, kinds map[string]string) {
	t.Helper()
	var lines strings.Builder
	for i, a := range traffic(6000) {
		if field == "" {
			lines.WriteString(a.json(""))
		} else {
			lines.WriteString(a.json(fmt.Sprintf(field, i%5*i%13)))
		}
	}
	log := lines.String()
	for name, options := range kinds {
		w := mustRun(t, oneZone(t, 100, options), o, log).Zones[0].Windows[0]
		if len(w.Candidates) != 7 || w.NotFollowed != 0 {
			t.Fatalf("%s: %+v", name, w)
		}
		touched := int64(0)
		for _, c := range w.Candidates {
			one := options
			if name == "leaky_bucket" { // whose queue keeps its ratio to the limit
				one = strings.Replace(options, "100", fmt.Sprint(c.Limit), 1)
			}
			z := mustRun(t, oneZone(t, int(c.Limit), one), o, log).Zones[0]
			off := max(z.Denied-c.Requests, c.Requests-z.Denied)
			if name == "sliding_log" {
				off -= z.Denied / 25 // sub-windows stand in for a log
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

// What denied requests had been answered is counted by class, also what is no status. The first
// request is admitted.
func TestAnsweredByClass(t *testing.T) {
	var log []asked
	for i, status := range []int{200, 100, 204, 299, 302, 404, 429, 503, 0, 700} {
		log = append(log, asked{float64(i) / 1e3, "203.0.113.9", "/", "example.com", status})
	}
	z := mustRun(t, oneZone(t, 1, ""), simulate.Options{}, jsonLog(log)).Zones[0]
	want := map[string]int64{"1xx": 1, "2xx": 2, "3xx": 1, "4xx": 2, "5xx": 1, "unknown": 2}
	if !maps.Equal(z.Answered, want) || z.Denied != 9 || z.Requests != 10 {
		t.Errorf("%d of %d requests are denied, which had been answered %v, want %v", z.Denied, z.Requests, z.Answered, want)
	}
}

// However many nodes there are: where each client goes to one of them, or Redis decides, they deny
// what one does; where they sync they come near it; where they don't, less is denied. How near is
// the sync's doing; TestProcessesAdmitWhatTheSimulatorPredicts holds its network to real nodes.
func TestNodes(t *testing.T) {
	log := jsonLog(traffic(redistest.Times(4000, 8000)))
	rate := func(s string) *config.SyncRate {
		r, err := config.ParseSyncRate(s)
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
		if one < 100 || float64(max(synced-one, one-synced)) > .1*float64(one) || local > one*3/4 {
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
		forward_auth 192.0.2.1 {
			uri /plan
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

// Requests come to the limits of their site, and only to those that match; what a configuration has
// beside them is left alone. A configuration whose regions are found where it runs is replayed
// elsewhere, and a key may have the address at which a request comes in.
func TestAConfigurationOfRegionsIsReplayed(t *testing.T) {
	config := caddyfile(t, `{
	rate_limit {
		regions {
			here {env.NO_SUCH_REGION}
			region eu {env.NO_SUCH_URL}
			region us redis://192.0.2.1:6379
		}
	}
}
example.com {
	rate_limit {
		zone z {
			key {http.request.local.host}
			limit 2/1h
			sync_rate 1s
		}
	}
}`)
	log := strings.Repeat(asked{1, "203.0.113.1", "/", "example.com", 200}.json(""), 3)
	if r := mustRun(t, config, simulate.Options{}, log); len(r.Zones) != 1 || r.Zones[0].Denied != 1 || !strings.Contains(fmt.Sprint(r.Warnings), "regions are replayed as one") {
		t.Errorf("%+v, %q, want 1 of 3 denied, and that the regions are replayed as one", r.Zones, r.Warnings)
	}
}

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
	if text := fmt.Sprint(mustRun(t, caddyfile(t, sites), simulate.Options{}, strings.ReplaceAll(log.String(), "X-User", "X-Us")).Warnings); !strings.Contains(text, `zone "plan": the key is empty in all requests`) {
		t.Errorf("where nobody has a key it warns of %s", text)
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
		"both":       {site(limited + `,"concurrent":4,"bandwidth":"1MiB/s"}`), line.json(""), "slowed"},
		"matcher":    {site(limited + `,"match":[{"header":{"X":["y"]}},{"path":["/"]}]}`), line.combined(), "headers that a matcher may look at"},
		"masked":     {site(limited + "}"), asked{0, "203.0.113.0", "/", "example.com", 200}.json("") + asked{1, "2001:db8::", "/", "example.com", 200}.json(""), "as in one that masks them"},
		"hashed":     {site(limited + "}"), asked{0, "1a2b3c4d", "/", "example.com", 200}.json(""), "as in a log that hashes"},
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
		"concurrent":  {string(site(`{"concurrent":4}`)), line.json(""), "no zone of the configuration can be replayed; zone \"z\": concurrent is not replayed"},
		"bandwidth":   {string(site(`{"bandwidth":"1MiB/s"}`)), line.json(""), "no zone of the configuration can be replayed; zone \"z\": bandwidth is not replayed"},
		"bad limit":   {string(site(`{"limits":[]}`)), line.json(""), "loading the configuration"},
	} {
		if _, err := run(t, []byte(test.config), simulate.Options{}, test.log); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
}

// A zone with nothing but what can't be replayed is left out beside others, and asked for it is an
// error that says why.
func TestZonesThatAreLeftOut(t *testing.T) {
	config := []byte(`{"apps":{"http":{"servers":{"s":{"listen":[":80"],"routes":[{"handle":[
		{"handler":"rate_limit","rate_limits":{"slots":{"concurrent":4}}},
		{"handler":"rate_limit","rate_limits":{"rate":{"bandwidth":"1MiB/s"},"z":{"limits":[{"max_events":5,"window":"1m"}]}}}]}]}}}}}`)
	log := jsonLog(traffic(100))
	r := mustRun(t, config, simulate.Options{}, log)
	if len(r.Zones) != 1 || r.Zones[0].Zone != "z" || r.Zones[0].Denied == 0 || len(r.Warnings) != 2 {
		t.Errorf("%+v", r)
	}
	if _, err := run(t, config, simulate.Options{Zone: "slots"}, log); err == nil || !strings.Contains(err.Error(), "nothing of zone \"slots\" can be replayed: concurrent") {
		t.Errorf("of a zone that is left out: %v", err)
	}
}

// Bans begin and end in the time of the log, and their requests are those of their clients.
func TestBansInTheTimeOfTheLog(t *testing.T) {
	// A client sends 10 requests in each of 40 minutes: 5 are admitted and 3 denied, of which the
	// last one begins a ban of a quarter of an hour. That happens three times.
	var log strings.Builder
	for i := range 400 {
		log.WriteString(asked{float64(i/10)*60 + float64(i%10), "203.0.113.1", "/", "example.com", 200}.json(""))
		if i%10 == 0 {
			log.WriteString(asked{float64(i/10)*60 + .5, "203.0.113.2", "/", "example.com", 200}.json(""))
		}
	}
	const ban = `,"algorithm":"fixed_window","ban":{"for":"15m","after":{"max_events":3,"window":"10m"}}`
	config := func(options string) []byte {
		return []byte(strings.Replace(string(oneZone(t, 5, options)), `"window":"10s"`, `"window":"1m"`, 1))
	}
	z := mustRun(t, config(ban), simulate.Options{ShowKeys: true}, log.String()).Zones[0]
	if z.Requests != 440 || z.Clients != 2 || z.DeniedClients != 1 || z.Windows[0].Most.Max < 10 || len(z.Top) != 1 || z.Top[0].Denied != z.Denied {
		t.Errorf("%+v", z)
	}
	if counted := z.Denied - z.Banned; counted != 3*3 || z.Banned < 280 {
		t.Errorf("%d requests are denied, and %d of them during a ban", z.Denied, z.Banned)
	}
	if strings.Join(z.With, ", ") != "ban 15m after 3/10m" {
		t.Errorf("replayed with %q", z.With)
	}
	shadow := mustRun(t, config(ban+`,"enforce":0`), simulate.Options{}, log.String()).Zones[0]
	if shadow.WouldDeny != z.Denied || shadow.Banned != z.Banned || shadow.Denied != 0 {
		t.Errorf("in shadow mode: %+v", shadow)
	}
}

// Nodes share bans: one on which a key was never denied knows of its ban after one request, and
// where Redis decides before that.
func TestBansOfSeveralNodes(t *testing.T) {
	var log strings.Builder
	// Requests go to the nodes in turn: all ten of one client to the second, and a minute later
	// five of his to the third. The others don't match.
	for i := range 15 {
		at := float64(i) + float64(i/10)*60
		for k := range 3 {
			host := "other.example.com"
			if k == i/10 {
				host = "example.com"
			}
			log.WriteString(asked{at + float64(k)/10, "203.0.113.1", "/", host, 200}.json(""))
		}
	}
	adapted := oneZone(t, 5, `,"algorithm":"fixed_window","ban":{"for":"1h"},"match":[{"host":["example.com"]}]`)
	for rate, want := range map[string]int64{"local": 0, "200ms": 4, "strict": 5} {
		r, err := config.ParseSyncRate(rate)
		if err != nil {
			t.Fatal(err)
		}
		z := mustRun(t, []byte(strings.Replace(string(adapted), `"10s"`, `"1m"`, 1)), simulate.Options{Nodes: 3, SyncRate: &r}, log.String()).Zones[0]
		if got := z.Denied - 5; z.Requests != 15 || got != want {
			t.Errorf("%s: of 5 requests to another node %d are denied, want %d", rate, got, want)
		}
	}
}

// What is replayed beside limits is said, and of what it goes by.
// What a request costs is read from its line: a field of it, a header, or the length of its body.
func TestCostsOfALog(t *testing.T) {
	costs := ""
	for i, cost := range []string{"3", "4.5", "", "many", "90", "2"} {
		costs += asked{float64(i) / 100, "203.0.113.1", "/", "example.com", 200}.json(fmt.Sprintf(`,"headers":{"X-Cost":[%q]}},"bytes_read":%d,"resp_headers":{"X-Cost":[%[1]q]},"rest":{"a":1`, cost, 10*i))
	}
	for options, want := range map[string]string{ // the most of a client, and how many are denied
		`,"cost":[{"units":"` + simulate.CostInLog + `"}],"cost_default":1`:    "102 1",
		`,"cost":[{"units":"{http.request.header.X-Cost}"}],"cost_default":20`: "140 1",
		`,"cost":[{"bytes":true}],"cost_default":1`:                            "150 1",
		`,"cost":[{"units":4}]`: "24 0",
		``:                      "6 0",
	} {
		r := mustRun(t, oneZone(t, 100, options), simulate.Options{CostField: "resp_headers.x-cost"}, costs)
		z := r.Zones[0]
		if got := fmt.Sprint(z.Windows[0].Most.Max, " ", z.Denied); got != want || (len(z.With) > 0) != (options != "") {
			t.Errorf("%s: %s, want %s; with %q", options, got, want, z.With)
		}
		if !strings.Contains(strings.Join(r.Warnings, " "), "2 of 6 requests have no number at resp_headers.x-cost") {
			t.Errorf("%s: it warns of %q", options, r.Warnings)
		}
	}
}

// What a response has cost is read from its line once it had ended: a header, the length of its
// body, or the field that stands for what no log has. Without it a request costs its estimate.
func TestResponseCostsOfALog(t *testing.T) {
	log := ""
	for i, answer := range []string{`"size":10,"resp_headers":{"X-Cost":["5"]}`, `"size":10,"resp_headers":{}`, `"size":10`} {
		log += asked{float64(i), "203.0.113.1", "/", "example.com", 200}.json(`},` + answer + `,"rest":{"a":1`)
	}
	log += strings.Replace(asked{3, "203.0.113.1", "/", "example.com", 200}.json(`},"size":10,"rest":{"a":1`), `"GET"`, `"HEAD"`, 1)
	for i := range 10 { // and how much is left is seen by as many as are admitted then
		log += asked{100 + float64(i), "203.0.113.1", "/", "example.com", 200}.json(`},"size":20,"resp_headers":{"X-Cost":["10"]},"rest":{"a":1`)
	}
	for _, c := range []struct {
		options, field string
		used, each     int // by the first ones, and by each further one
	}{
		{`[{"header":"x-cost"}]`, "", 5 + 3*20, 10},
		{`[{"bytes":true}]`, "", 3 * 10, 20},
		{`[{"bytes":true,"factor":0.5},{"header":"X-Cost"}]`, "", 10 + 2*5, 20},
		{`[{"json":["usage.total_tokens"]}],"response_cost_default":50,"count_responses":{"status_code":[200]}`, "", 4 * 20, 20},
		{`[{"json":["usage.output_tokens"]},{"json":["usage.input_tokens"]}]`, "size", 4 * 10, 20},
		{`[{"units":"{http.vars.spent}","factor":2}],"response_cost_default":21,"count_responses":{"status_code":[200]}`, "resp_headers.X-Cost", 10 + 2*21 + 20, 20},
	} {
		options := `,"algorithm":"fixed_window","cost":[{"units":20}],"response_cost":` + c.options
		r := mustRun(t, []byte(strings.Replace(string(oneZone(t, 100, options)), `"10s"`, `"1h"`, 1)), simulate.Options{CostField: c.field}, log)
		if got, want := 10-r.Zones[0].Denied, (100-c.used-20)/c.each+1; got != int64(want) {
			t.Errorf("%s: %d are admitted after the first ones, want %d", c.options, got, want)
		}
		if warns := strings.Contains(strings.Join(r.Warnings, " "), "give --cost-field"); warns != (strings.Contains(c.options, "json") && c.field == "") {
			t.Errorf("%s: it warns of %q", c.options, r.Warnings)
		}
	}
}

func TestOptionsAreSaid(t *testing.T) {
	log := asked{0, "203.0.113.1", "/", "example.com", 200}.json("")
	r := mustRun(t, oneZone(t, 5, `,"count_responses":{"status_code":[401]}`), simulate.Options{}, log)
	if strings.Join(r.Zones[0].With, ", ") != "count_responses by the status of the log" || !strings.Contains(strings.Join(r.Bias, "\n"), "count_responses: the log has") {
		t.Errorf("%q, %q", r.Zones[0].With, r.Bias)
	}
	r = mustRun(t, oneZone(t, 5, `,"reserve":[{"share":0.2,"match":[{"path":["/"]}]}],"key":"all"`), simulate.Options{}, log)
	if strings.Join(r.Zones[0].With, ", ") != "reserve 20% for requests that match" {
		t.Errorf("%q", r.Zones[0].With)
	}
}

// Responses that look as if they should count are shown where no zone counts them, not those that
// one counts or denies.
func TestWhatNoZoneCounts(t *testing.T) {
	config := caddyfile(t, `example.com {
		rate_limit {
			zone login {
				match path /login*
				limit 5/1h
				count_responses 401
			}
			zone api {
				match path /api*
				limit 2/1h
			}
			zone free {
				match path /free*
				limit 2/1h
				cost 0
			}
		}
		respond ok
	}`)
	var log []asked
	add := func(n int, path string, status int) {
		for range n {
			log = append(log, asked{float64(len(log)), "203.0.113.9", path, "example.com", status})
		}
	}
	add(3, "/login", 401)
	add(4, "/login", 403)
	add(5, "/api", 403) // of which 2 count, and the others are denied
	add(2, "/free", 403)
	for i, path := range []string{"/wp-login.php", "/xmlrpc.php", "/admin"} {
		add(12-i, path+"?token=secret", 401)
	}
	add(9, "/admin", 429)
	add(20, "/missing", 404)
	r := mustRun(t, config, simulate.Options{}, jsonLog(log))
	want := []simulate.Uncounted{{"/wp-login.php", 401, 12}, {"/xmlrpc.php", 401, 11}, {"/admin", 401, 10}, {"/admin", 429, 9}, {"/login", 403, 4}}
	if !slices.Equal(r.Uncounted, want) {
		t.Errorf("no zone counted %v, want %v", r.Uncounted, want)
	}
	log = nil
	add(2, "/api", 403)
	add(5, "/login", 401)
	add(3, "/login", 403) // which are denied
	add(2, "/free", 403)
	r = mustRun(t, config, simulate.Options{}, jsonLog(log))
	if want := []simulate.Uncounted{{"/free", 403, 2}}; !slices.Equal(r.Uncounted, want) {
		t.Errorf("no zone counted %v, want %v", r.Uncounted, want)
	}
}

// A request in early data that was answered with 425 has come again, so it counts once.
func TestRequestsThatComeAgainCountOnce(t *testing.T) {
	var log []asked
	for i := range 4 {
		log = append(log, asked{float64(i), "203.0.113.9", "/", "example.com", []int{425, 200}[i%2]})
	}
	if r := mustRun(t, oneZone(t, 2, ""), simulate.Options{}, jsonLog(log)); r.Requests != 2 || r.Zones[0].Denied != 0 {
		t.Errorf("of 2 requests that came twice each %d are replayed and %d denied", r.Requests, r.Zones[0].Denied)
	}
}

// Responses that nobody got stay charged, as in life: the client has gone, or the upstream has not
// answered.
func TestResponsesThatNobodyGot(t *testing.T) {
	for status, want := range map[int]int64{200: 0, 401: 15, 499: 15, 504: 15, 0: 15, 502: 0} {
		var log string
		for i := range 20 {
			log += asked{float64(i) / 10, "203.0.113.1", "/", "example.com", status}.json("")
		}
		if z := mustRun(t, oneZone(t, 5, `,"algorithm":"fixed_window","count_responses":{"status_code":[401]}`), simulate.Options{}, log).Zones[0]; z.Denied != want {
			t.Errorf("of 20 responses with %d: %d are denied, want %d", status, z.Denied, want)
		}
	}
}

// However many clients there are, what is held of them is bounded, and the report says what is left
// out.
func TestMoreClientsThanAreHeld(t *testing.T) {
	var log strings.Builder
	const clients = 140_000
	for i := range clients {
		fmt.Fprintf(&log, `10.%d.%d.%d - - [14/Nov/2023:22:13:20 +0000] "GET / HTTP/1.1" 200 17`+"\n", i>>16, i>>8&255, i&255)
	}
	r := mustRun(t, oneZone(t, 5, `,"max_keys":1000`), simulate.Options{}, log.String())
	said := strings.Join(r.Warnings, "\n")
	w := r.Zones[0].Windows[0]
	if w.OneIn != 2 || !strings.Contains(said, "beyond max_keys") || !strings.Contains(said, "estimated from one in 2") || !strings.Contains(said, "too many requests began within --reorder") {
		t.Errorf("one in %d, %q", w.OneIn, said)
	}
	if off := r.Clients - clients; r.Requests != clients || off < -clients/50 || off > clients/50 {
		t.Errorf("%d requests of %d clients", r.Requests, r.Clients)
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
		r.Read.Damaged, r.Read.Troubles = 1, []accesslog.Trouble{{File: "a\x1b[31m\u202e<script>", Line: 7, Why: "why"}}
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
