package recipes_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// planZone is a zone whose limit comes with the request, and is 3 for one without.
func planZone(name, options string) string {
	return sitetest.ZoneBlock(strconv.Quote(name), "limit {http.request.header.X-Plan}/30d\nlimit_default 3/30d\n"+options)
}

// Each request is decided by the limit that it brings, under every algorithm and wherever counts
// are.
func TestLimitsComeWithTheRequest(t *testing.T) {
	redis := redistest.Start(t)
	for _, algorithm := range algorithms.KindNames() {
		for _, rate := range []string{"local", "1h", "strict"} {
			t.Run(algorithm+" "+rate, func(t *testing.T) {
				app, options := &ratelimit.App{}, "algorithm "+algorithm+"\nsync_rate "+rate
				if rate != "local" {
					app = sitetest.AppWith(redis)
				}
				size := func(n int) int { return n }
				if algorithm == "leaky_bucket" { // one is served at once, and none may wait
					options += "\nqueue 0"
					size = func(n int) int { return min(n, 1) }
				}
				s := sitetest.NewSite(t, app, planZone("plan "+algorithm+" "+rate, options))
				s.Admits("1.1.1.1", 50, 50, sitetest.Plan("unlimited"))
				s.Admits("1.1.1.1", 3, 0, sitetest.Plan("0"))
				s.Admits("1.1.1.1", 5, size(3))
				s.Admits("1.1.1.1", 9, size(8)-size(3), sitetest.Plan("8"))
				s.Admits("1.1.1.1", 3, 0)
				s.Admits("1.1.1.1", 50, 50, sitetest.Plan("unlimited"))
				s.Admits("1.1.1.2", 22, size(20), sitetest.Plan("20"))
				s.Admits("1.1.1.2", 3, 0, sitetest.Plan("5"))
				s.Admits("1.1.1.2", 6, size(25)-size(20), sitetest.Plan("25"))
			})
		}
	}
}

// What is no limit takes the default, is counted, and warned of once.
func TestAValueThatIsNoLimit(t *testing.T) {
	bad := []string{
		"", " ", "-1", "-5", "+5", "5 ", " 5", "5.0", "1e3", "0x10", "1_000", "five", "Unlimited", "unlimited ", "9007199254740993",
		"99999999999999999999999", strings.Repeat("9", 20_000), "NaN", "٥", "5,5", "{env.HOME}", "null", "\x00",
	}
	site := sitetest.NewSite(t, &ratelimit.App{}, planZone("bad values here", ""))
	logs := site.Watched()
	for i, value := range bad {
		site.Admits(fmt.Sprintf("2.2.2.%d", i), 5, 3, sitetest.Plan(value))
	}
	counted := 0.0
	sitetest.Scrape(t, func(name string, labels map[string]string, value float64) {
		if strings.HasSuffix(name, "limit_defaults_total") && labels["zone"] == "bad values here" {
			counted = value
		}
	})
	if want := float64(5 * len(bad)); counted != want {
		t.Errorf("%v limits counted as defaults, want %v", counted, want)
	}
	if n := sitetest.Coded(logs, warning.LimitValue); n != 1 {
		t.Errorf("%d warnings of values that are no limit, want 1", n)
	}
	for i, value := range []string{"0", "00", "9007199254740992", "5", "0005"} {
		want := []int{0, 0, 9, 5, 5}[i]
		site.Admits(fmt.Sprintf("2.2.3.%d", i), 9, want, sitetest.Plan(value))
	}
}

// Headers tell the limit of the request.
func TestHeadersOfALimitThatComesWithTheRequest(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, "headers ietf kong github\n"+planZone("told", ""))
	for value, want := range map[string]map[string]string{
		"20":               {"Ratelimit-Policy": `"told";q=20;w=2592000`, "X-Ratelimit-Limit-Month": "20", "X-Ratelimit-Remaining-Month": "19", "X-Ratelimit-Limit": "20"},
		"":                 {"Ratelimit-Policy": `"told";q=3;w=2592000`, "X-Ratelimit-Limit-Month": "3", "X-Ratelimit-Remaining-Month": "2", "X-Ratelimit-Limit": "3"},
		"0":                {"Ratelimit-Policy": `"told";q=0;w=2592000`, "X-Ratelimit-Limit-Month": "0", "X-Ratelimit-Remaining-Month": "0", "Retry-After": "2592000"},
		"unlimited":        {"Ratelimit-Policy": "", "X-Ratelimit-Limit-Month": "", "X-Ratelimit-Limit": ""},
		"9007199254740992": {"Ratelimit-Policy": `"told";q=99999999999999;w=2592000`, "X-Ratelimit-Limit-Month": "9007199254740992"},
	} {
		got := s.Get("3.3.3."+fmt.Sprint(len(value)), sitetest.Plan(value))
		for name, text := range want {
			if got.Header.Get(name) != text {
				t.Errorf("plan %q: %s: %q, want %q", value, name, got.Header.Get(name), text)
			}
		}
	}
	two := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("two", "limit {http.request.header.X-Plan}/30d 9/60d\nlimit_default 3/30d"))
	if got, want := two.Get("3.3.4.1", sitetest.Plan("5")).Header.Get("RateLimit-Policy"), `"two-30d";q=5;w=2592000, "two-60d";q=9;w=5184000`; got != want {
		t.Errorf("RateLimit-Policy: %s, want %s", got, want)
	}
	if got, want := two.Get("3.3.4.1", sitetest.Plan("unlimited")).Header.Get("RateLimit-Policy"), `"two-60d";q=9;w=5184000`; got != want {
		t.Errorf("RateLimit-Policy: %s, want %s", got, want)
	}
	two.Admits("3.3.4.1", 8, 7, sitetest.Plan("unlimited"))
}

// Keys beyond max_keys are limited each by the limit of its request as well.
func TestLimitsThatComeWithTheRequestBeyondMaxKeys(t *testing.T) {
	for i, options := range []string{"", "algorithm token_bucket", "algorithm sliding_log", "algorithm fixed_window"} {
		s := sitetest.NewSite(t, &ratelimit.App{}, planZone(fmt.Sprint("full-", i), "max_keys 1\n"+options))
		ips := s.Apart(21, func(i int) string { return fmt.Sprintf("5.0.1.%d", i) }, func(ip string) *http.Request { return s.Request(ip) })
		s.Admits(ips[20], 1, 1, sitetest.Plan("60000"))
		for i := range 10 {
			low, high := ips[i], ips[10+i]
			s.Admits(high, 10, 10, sitetest.Plan("60000"))
			s.Admits(low, 8, 5, sitetest.Plan("5"))
			s.Admits(low, 3, 0, sitetest.Plan("5"))
			s.Admits(low, 4, 4, sitetest.Plan("9"))
		}
	}
}

// Counts don't depend on limits: a reload that takes them from the request goes on with what is
// spent.
func TestAReloadToALimitThatComesWithTheRequest(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("reloaded", "limit 5/30d"))
	s.Admits("7.7.7.7", 4, 4)
	next := sitetest.NewSite(t, &ratelimit.App{}, planZone("reloaded", ""))
	s.End()
	next.Admits("7.7.7.7", 9, 6, sitetest.Plan("10"))
	again := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("reloaded", "limit 12/30d"))
	next.End()
	again.Admits("7.7.7.7", 9, 2)
}

// BenchmarkPlansByMap is a request of the customer who stands last in a table of so many, as in
// examples/api-keys. Caddy looks at one row after the other, and formats the numbers of each. This
// is what docs/tiers.md has for how large such a table may be.
func BenchmarkPlansByMap(b *testing.B) {
	for _, rows := range []int{1, 100, 500, 1000, 5000} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			var table strings.Builder
			for i := range rows {
				fmt.Fprintf(&table, "key-%d customer-%d 1000000000\n", i, i)
			}
			config, err := sitetest.Adapt("{\nadmin off\npersist_config off\nauto_https off\n}\nhttp://127.0.0.1:" + strconv.Itoa(redistest.FreePort(b)) +
				" {\nmap {header.X-Api-Key} {customer} {rpm} {\n" + table.String() + "default \"\" 60\n}\n" +
				"rate_limit {\n" + sitetest.ZoneBlock("plans", "key {customer}\nlimit {rpm}/30d\nlimit_default 60/30d") + "}\nrespond ok\n}")
			if err != nil {
				b.Fatal(err)
			}
			sitetest.LoadConfig(b, config)
			app, err := caddy.ActiveContext().App("http")
			if err != nil {
				b.Fatal(err)
			}
			s := app.(*caddyhttp.App).Servers["srv0"]
			r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/", nil)
			r.Header.Set("X-Api-Key", fmt.Sprint("key-", rows-1))
			for b.Loop() {
				w := httptest.NewRecorder()
				if s.ServeHTTP(w, r); w.Code != http.StatusOK || w.Body.String() != "ok" {
					b.Fatalf("%d %s", w.Code, w.Body)
				}
			}
			b.ReportMetric(1e9*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "requests/s")
		})
	}
}

// The page's service says who a customer is and what the plan has. What a client claims is
// replaced, or taken away where the service says nothing.
func TestPlansOfAService(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Api-Key") == "gold" {
			w.Header().Set("X-Customer", "acme")
			w.Header().Set("X-Rpm", "200")
		}
	}))
	defer service.Close()
	upstream, _ := sitetest.Backend(t, "backend")
	text := sitetest.BlocksOf(t, "docs/tiers.md", "caddyfile")[2].Text
	config, err := sitetest.Adapt(text)
	if err != nil {
		t.Fatal(err)
	}
	if warned := sitetest.WarnedOf(t, config); len(warned) > 0 {
		t.Errorf("the page warns of %q", warned)
	}
	_, site, _ := strings.Cut(text, "api.example.com {\n")
	s := sitetest.StartCaddy(t, "", strings.NewReplacer("localhost:9001", service.Listener.Addr().String(), "localhost:9000", upstream, "/1m", "/3650d").
		Replace(strings.TrimSuffix(strings.TrimSpace(site), "}")))
	forged := func(n int) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Set("X-Customer", fmt.Sprint("victim", n))
			r.Header.Set("X-Rpm", "unlimited")
		}
	}
	admitted := func(times int, each ...func(*http.Request)) (n int) {
		for i := range times {
			a, err := s.Get(t.Context(), "HTTP/1.1", append(each, forged(i))...)
			if err != nil {
				t.Fatal(err)
			}
			if a.Status == http.StatusOK {
				n++
			}
		}
		return n
	}
	if n := admitted(70); n != 60 {
		t.Errorf("of somebody the service does not know %d requests are admitted, want 60", n)
	}
	if n := admitted(210, sitetest.Header("X-Api-Key", "gold")); n != 200 {
		t.Errorf("of a customer %d requests are admitted, want 200", n)
	}
}
