// no clock: these are the names of zones, whose windows stretch lengthens.

package recipes_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// anything is a limit for all requests of a client.
func anything(most int) []attack { return []attack{{send: "GET /", most: most}} }

func holdsNobody(why string) []attack { return []attack{{nothing: why}} }

// passwords are guesses those of a password.
func passwords(most int) []attack {
	return []attack{{send: "POST /login", most: most, status: http.StatusUnauthorized}}
}

// oneKey is a valid key beside others in one header. However many lines there are, and whichever a
// backend reads, the key has its limit, and all requests with several values have one more.
func oneKey(most int, each ...func(int, *http.Request)) attack {
	key := with(append(each, as("X-Api-Key", always("k")))...)
	return attack{send: "GET /", most: most, again: most, each: key, vary: []func(int, *http.Request){
		line("X-Api-Key", fresh), line("X-Api-Key", always("")), line("X-Api-Key", always("k")),
		with(as("X-Api-Key", fresh), line("X-Api-Key", always("k"))),
	}}
}

// madeUp is a new key in each request, which an address limits.
func madeUp(most int) []attack {
	return []attack{{send: "GET /", most: most, each: as("X-Api-Key", fresh)}}
}

// keyed is a limit by key: one key, and clients that send none.
func keyed(most int) []attack { return []attack{oneKey(most), {send: "GET /", most: most}} }

// preflighted asks as browsers do before, without being that.
var preflighted = []func(int, *http.Request){
	as("Access-Control-Request-Method", always("POST")), byMethod("OPTIONS"), with(byMethod("OPTIONS"), as("Origin", fresh)),
	with(byMethod("options"), as("Origin", fresh), as("Access-Control-Request-Method", always("POST"))),
}

// unpaid is a key that is nearly one that pays.
var unpaid = []func(int, *http.Request){
	as("X-Api-Key", always("5DDC4EB2")), with(as("X-Api-Key", always("5ddc4eb2")), line("X-Api-Key", fresh)), as("X-Api-Key", fresh),
}

func user(name func(int) string) func(int, *http.Request) {
	return func(n int, r *http.Request) { r.SetBasicAuth(name(n), "hiccup") }
}

var bob = user(always("bob"))

// signedIn are spellings of one user's request.
func signedIn(most int, each ...func(int, *http.Request)) attack {
	return attack{send: "GET /", most: most, each: with(append(each, bob)...), vary: []func(int, *http.Request){
		func(n int, r *http.Request) {
			scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
			r.Header.Set("Authorization", cases(scheme)(n)+" "+rest)
		},
		line("Authorization", fresh),
	}}
}

var (
	crawlers = []string{"Googlebot", "bingbot", "GPTBot", "ClaudeBot", "CCBot"}
	upgraded = with(as("Connection", always("Upgrade")), as("Upgrade", always("websocket")))
)

// attacks are what is tried against each zone of each Caddyfile for users.
var attacks = map[string][]attack{
	"README.md login":   passwords(5),
	"README.md tenant":  keyed(20),
	"README.md tokens":  {{send: "POST /v1/chat/completions", most: 7}},
	"README.md address": madeUp(1200),

	"Caddyfile.example :8080 5/10s": anything(5),
	"Caddyfile.example login":       passwords(5),
	"Caddyfile.example tenant":      keyed(100),
	"Caddyfile.example address":     madeUp(1200),

	"docs/algorithms.md :8084 1/1s": {{send: "GET /", most: 3, queue: 2}},
	"docs/ban.md login":             passwords(5),
	"docs/bandwidth.md downloads":   {{send: "GET /downloads/*", slow: true, most: 1}},
	"docs/concurrent.md downloads":  {{send: "GET /files/*", held: 4, most: 4}},
	"docs/concurrent.md reports":    {{send: "GET /reports/*", held: 2, most: 2}},
	"docs/concurrent.md backend":    {{send: "GET /api/*", held: 200, most: 200}},
	"docs/migration.md api":         holdsNobody("it is not enforced"),
	"docs/observability.md api":     anything(100),
	"docs/cost.md tokens":           {{send: "POST /v1/chat/completions", most: 7}},
	"docs/cost.md calls":            {{send: "GET /any", most: 300}},
	"docs/cost.md uploads":          holdsNobody("it counts bytes, and these requests have none: TestTermsOfACostAddUp"),
	"docs/login.md login":           passwords(5),
	"docs/login.md account":         {{send: "POST /login", most: 5, again: 5, status: http.StatusUnauthorized, each: query(always("user=bob"))}},
	"docs/login.md address":         {{send: "POST /login", most: 50, status: http.StatusUnauthorized, each: query(func(n int) string { return "user=" + fresh(n) })}},
	"docs/login.md wordpress":       {{send: "POST /wp-login.php", most: 5, status: http.StatusOK}},
	"docs/login.md login (2)":       {{send: "POST /login", most: 5, status: http.StatusFound, fails: func(h http.Header) { h.Set("Location", "/login?error") }}},
	"docs/reserve.md backend":       {{send: "GET /", most: 80, each: many, vary: unpaid}},
	"docs/shadow.md api":            anything(600),
	"docs/shadow.md api_lower":      holdsNobody("it is not enforced"),
	"docs/shadow.md api_lower (2)":  holdsNobody("it is not enforced"),
	"docs/shadow.md search":         holdsNobody("it is enforced for a quarter of the clients: TestWhichKeysAreEnforced"),
	"docs/tiers.md customer": append(madeUp(60),
		attack{send: "GET /", most: 60},
		attack{send: "GET /", most: 600, again: 60, each: as("X-Api-Key", always("silver-0001")), vary: []func(int, *http.Request){
			line("X-Api-Key", fresh), line("X-Api-Key", always("gold-0001")), as("X-Api-Key", always("Silver-0001")),
		}}),
	"docs/tiers.md customer (2)": holdsNobody("a service says who asks: TestPlansOfAService"),
	"docs/quotas.md plan": {{send: "GET /v1/names", most: 0, each: as("X-Api-Key", fresh)}, {send: "GET /v1/names", most: 10000, each: as("X-Api-Key", always("gold-0001")), vary: []func(int, *http.Request){
		line("X-Api-Key", fresh), line("X-Api-Key", always("silver-0001")), as("X-Api-Key", always("Gold-0001")),
	}}},
	"docs/quotas.md tokens": {signedIn(200)},
	"examples/quota/Caddyfile plan": {{send: "GET /v1/names", most: 5, each: as("X-Api-Key", always("gold-0001")), vary: []func(int, *http.Request){
		line("X-Api-Key", fresh), line("X-Api-Key", always("silver-0001")), as("X-Api-Key", always("Gold-0001")),
	}}},
	"docs/tiers.md api_key":                            keyed(60),
	"docs/tiers.md address":                            madeUp(6000),
	"examples/users/Caddyfile guesses":                 {{send: "GET /", most: 600, each: user(fresh)}},
	"examples/users/Caddyfile plan":                    {signedIn(60)},
	"docs/status-page.md http://localhost:8080 100/1m": anything(100),

	"docs/configuration.md a.example.com 100/1m 1000/1h": anything(100),
	"docs/configuration.md a.example.com 10/1s":          {{send: "GET /search", most: 10}},
	"docs/configuration.md b.example.com 100/1m":         {{send: "GET /", most: 100, each: many}},
	"docs/configuration.md uploads":                      {{send: "POST /upload/*", most: 10}, {send: "PUT /upload/*", most: 10}},
	"docs/configuration.md all":                          anything(1000),
	"docs/keys.md country":                               {{send: "GET /", most: 60, vary: []func(int, *http.Request){as("CF-IPCountry", always("DE")), line("CF-IPCountry", fresh)}}},
	"docs/keys.md hosting":                               {{send: "GET /", most: 300, each: from("[2001:db8:0:%x::1]:4711", 256)}},
	"docs/keys.md bots":                                  {{send: "GET /", most: 100, each: with(many, as("User-Agent", cases("Googlebot")))}},
	"docs/regions.md api":                                anything(1000),
	"docs/regions.md here_only":                          {{send: "GET /reports", most: 100}},
	"docs/responses.md example.com 100/1m":               anything(100),
	"docs/keys.md tenant":                                {oneKey(600, onURI(func(n int) string { return fmt.Sprint("/", n) }))},
	// /Page is another page.
	"docs/keys.md pages":                        {{send: "GET /page", most: 10, again: 10}},
	"docs/keys.md backend":                      {{send: "GET /", most: 1000, each: with(many, as("X-Api-Key", fresh))}},
	"docs/configuration.md example.com 10/1m":   {{send: "GET /", most: 10, each: user(fresh)}},
	"docs/configuration.md example.com 1000/1h": {signedIn(1000, many)},

	"docs/responses.md www.example.com 100/1m": anything(100),
	"docs/responses.md search":                 {{send: "GET /search", most: 30, upstream: "localhost:9000"}},
	"docs/responses.md search_index":           {{send: "GET /search", most: 300, upstream: "localhost:9001", spared: 30}},
	"docs/responses.md comments":               {{send: "POST /comments", most: 5}},
	"docs/responses.md free":                   {{send: "GET /", most: 21, queue: 20, each: many, vary: unpaid}},

	"docs/security.md example.com 100/1m": {{send: "GET /", most: 100, each: by("203.0.113.77", always("")), vary: []func(int, *http.Request){
		by("203.0.113.77", func(n int) string { return fmt.Sprint("198.51.100.", n%256) }), line("X-Forwarded-For", always("203.0.113.77")),
	}}},
	"docs/security.md client":   {{send: "GET /", most: 100, each: from("[2001:db8::%x]:4711", 65536)}},
	"docs/security.md site":     {{send: "GET /", most: 400, each: from("[2001:db8:0:%x::1]:4711", 256)}},
	"docs/security.md customer": {{send: "GET /", most: 1600, each: from("[2001:db8:0:%x00::1]:4711", 256)}},
	"docs/security.md files": {{send: "GET /files/*", most: 100, vary: []func(int, *http.Request){
		onURI(always("/files/../x")), onURI(always("/files/..%2fx")), onURI(always("/files/%2e%2e%2fx")), onURI(always("/files/x/../../y")), onURI(always("/files/..")),
	}}},

	"docs/sync.md login":                    passwords(5),
	"docs/sync.md search":                   {{send: "GET /search", most: 10}},
	"docs/sync.md all":                      holdsNobody("this_node denies before"),
	"docs/sync.md this_node":                {{send: "GET /", most: 2000, each: many}},
	"docs/redis.md example.com 100/1m":      anything(100),
	"docs/redis.md example.com 100/1m (2)":  anything(100),
	"docs/redis.md example.com 100/1m (3)":  anything(100),
	"docs/redis.md shop.example.com 100/1m": anything(100),
	"docs/outages.md example.com 10000/1d":  anything(10000),

	"docs/migration/apisix.md v1":                   {{send: "GET /v1/*", most: 100, again: 100, each: oneKey(100).each, vary: oneKey(100).vary}},
	"docs/migration/envoy.md api":                   {{send: "GET /", most: 200, each: many}},
	"docs/migration/envoy.md login":                 passwords(5),
	"docs/migration/envoy.md address":               holdsNobody("it is not enforced"),
	"docs/migration/haproxy.md requests":            {{send: "GET /", most: 20}, {send: "GET /", held: 10, most: 10}},
	"docs/migration/haproxy.md abuse":               {{send: "GET /", most: 10, status: http.StatusNotFound}},
	"docs/migration/kong.md api.example.com 100/1m": anything(100),
	"docs/migration/mholt.md dynamic":               anything(100),
	"docs/migration/mholt.md dynamic (2)":           anything(100),
	"docs/migration/mholt.md foo":                   {{send: "GET /foo", most: 10, again: 10, each: oneKey(10).each, vary: oneKey(10).vary}},
	"docs/migration/mholt.md foo_address":           {{send: "GET /foo", most: 100, each: as("X-Api-Key", fresh)}, {send: "GET /foo", most: 100}},
	"docs/migration/nginx.md one":                   {{send: "GET /search/*", most: 21, queue: 20}},
	"docs/migration/nginx.md two":                   {{send: "GET /search/*", most: 101, each: with(many, func(n int, r *http.Request) { r.Host = cases(r.Host)(n) })}},
	"docs/migration/nginx.md perip":                 {{send: "GET /search/*", most: 21}},
	"docs/migration/nginx.md perip_api":             {{send: "GET /api/*", most: 3}},
	"docs/migration/nginx.md downloads":             {{send: "GET /download/*", held: 4, most: 4}},
	"docs/migration/nginx.md downloads_all":         {{send: "GET /download/*", held: 200, most: 200, each: many}},
	"docs/migration/traefik.md api":                 anything(200),

	"examples/allowlist/Caddyfile api": {{send: "GET /", most: 2, each: by("198.51.100.7", always("")), vary: []func(int, *http.Request){
		by("198.51.100.7", always("203.0.113.9")), onURI(always("//healthz")), onURI(always("/api/..%2fhealthz")), onURI(always("/healthz/x")), onURI(always("/x/../healthz")),
	}}},
	"examples/api-keys/Caddyfile plan": append(madeUp(3),
		attack{send: "GET /", most: 3},
		attack{send: "GET /", most: 20, again: 3, each: as("X-Api-Key", always("gold-0001")), vary: []func(int, *http.Request){
			line("X-Api-Key", fresh), line("X-Api-Key", always("silver-0001")), as("X-Api-Key", always("Gold-0001")),
		}}),
	"examples/behind-a-proxy/Caddyfile client": {{send: "GET /", most: 3, each: by("203.0.113.77", always("")), vary: []func(int, *http.Request){
		by("203.0.113.77", func(n int) string { return fmt.Sprint("198.51.100.", n%256) }),
	}}},
	"examples/crawlers/Caddyfile crawler": {
		{send: "GET /", most: 2, each: with(many, as("User-Agent", cases("googlebot"))), vary: []func(int, *http.Request){line("User-Agent", fresh)}},
	},
	"examples/crawlers/Caddyfile client": {
		{send: "GET /", most: 5, each: as("User-Agent", fresh)},
		{send: "GET /", most: 5, each: as("User-Agent", func(n int) string { return cases(crawlers[n%len(crawlers)])(n / len(crawlers)) })},
	},
	"examples/downloads/Caddyfile downloads":                    {{send: "GET /", held: 2, most: 2}},
	"examples/expensive/Caddyfile report":                       {{send: "GET /report", most: 5, queue: 4}},
	"examples/first-limit/Caddyfile http://localhost:8080 5/1m": anything(5),
	"examples/points/Caddyfile points":                          {{send: "GET /api/export", most: 2}, {send: "GET /api/search", most: 20}},
	"examples/json/Caddyfile api":                               anything(2),
	"examples/ban/Caddyfile login":                              passwords(3),
	"examples/paying/Caddyfile backend":                         {{send: "GET /", most: 8, each: many, vary: unpaid}},
	"examples/login/Caddyfile login":                            passwords(5),
	"examples/login/Caddyfile login_name": {{send: "POST /login", most: 10, again: 10, status: http.StatusUnauthorized, each: with(many, query(always("user=bob"))), vary: []func(int, *http.Request){
		query(func(n int) string { return "user=bob&user=" + fresh(n) }), query(func(n int) string { return "user=" + fresh(n) + "&user=bob" }),
		query(func(n int) string { return "user=bob&x=" + fresh(n) }), query(always("user=%62ob")),
	}}},
	"examples/login/Caddyfile login_all":     holdsNobody("it is not enforced"),
	"examples/paths/Caddyfile search":        {{send: "GET /search", most: 3}},
	"examples/paths/Caddyfile upload":        {{send: "PUT /files/*", most: 2}, {send: "POST /files/*", most: 2}},
	"examples/paths/Caddyfile all":           anything(20),
	"examples/preflights/Caddyfile api":      {{send: "GET /", most: 2, vary: preflighted}},
	"examples/soft-launch/Caddyfile api":     anything(8),
	"examples/soft-launch/Caddyfile api_new": holdsNobody("it is not enforced"),
	"examples/streams/Caddyfile events":      {{send: "GET /events", most: 3}},
	"examples/streams/Caddyfile websocket": {{send: "GET /", most: 4, each: upgraded, vary: []func(int, *http.Request){
		as("Upgrade", cases("websocket")), as("Connection", always("keep-alive, upgrade")), line("Connection", fresh), line("Upgrade", always("h2c")),
		func(_ int, r *http.Request) {
			r.Method, r.Proto, r.ProtoMajor, r.ProtoMinor = http.MethodConnect, "HTTP/2.0", 2, 0
			r.Header = http.Header{":protocol": {"websocket"}}
		},
	}}},
	"examples/streams/Caddyfile sockets":           {{send: "GET /", held: 2, most: 2, each: upgraded}},
	"examples/two-nodes/node1.Caddyfile everybody": anything(5),
	"examples/two-nodes/node2.Caddyfile everybody": anything(5),
}

// Every zone of every Caddyfile for users holds what its page says against clients that write their
// requests in whatever way backends take for the same one.
func TestRecipesUnderAttack(t *testing.T) {
	recipes := recipesOf(t)
	redis := redistest.Start(t)
	for name, r := range recipes {
		if attacks[name] == nil {
			t.Errorf("%s: zone %q has no attack; add what is promised of it as %q", r.where, r.zone, name)
		}
		for _, a := range attacks[name] {
			if a.nothing == "" {
				redis.Do("FLUSHALL")
				runAttack(t, r, a, redis.URL)
			}
		}
	}
	for name := range attacks {
		if recipes[name].text == "" {
			t.Errorf("there is no recipe %s", name)
		}
	}
}

// What users copy from a page loads without a warning of ours.
func TestRecipesWarnOfNothing(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range recipesOf(t) {
		if seen[r.text] {
			continue
		}
		seen[r.text] = true
		config, err := sitetest.Adapt(r.text)
		if err != nil {
			t.Fatal(err)
		}
		if warned := sitetest.WarnedOf(t, config); len(warned) > 0 {
			t.Errorf("%s warns: %q", r.where, warned)
		}
	}
}
