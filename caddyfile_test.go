// no clock: configurations are only read here.

package ratelimit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

func TestCaddyfile(t *testing.T) {
	sitetest.Goldens(t, "testdata/caddyfile/*.caddyfiletest", func(t *testing.T, input string) string {
		got, err := sitetest.Adapt(input)
		if err != nil {
			t.Fatalf("Adapt: %v", err)
		}
		for _, h := range sitetest.HandlersIn(t, got) {
			checkRoundTrip(t, h, got)
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, got, "", "\t"); err != nil {
			t.Fatal(err)
		}
		return indented.String()
	})
}

func TestCaddyfileErrors(t *testing.T) {
	place := regexp.MustCompile(`at Caddyfile:\d+`)
	sitetest.Goldens(t, "testdata/errors/*.caddyfiletest", func(t *testing.T, input string) string {
		text, err := sitetest.Adapt(input)
		if err == nil {
			t.Fatalf("Adapt = %s, want an error", text)
		}
		if !place.MatchString(err.Error()) {
			t.Errorf("Adapt: %v: no file and line", err)
		}
		return err.Error()
	})
}

// checkRoundTrip fails unless a handler means the same after one more conversion to JSON and back.
func checkRoundTrip(t testing.TB, h *ratelimit.Handler, config []byte) {
	t.Helper()
	app := sitetest.AppIn(t, config)
	globals, err := app.Checked()
	if err != nil {
		t.Errorf("check of %s: %v", config, err)
	}
	once, warnings, err := h.Settings(globals)
	if err != nil {
		t.Fatalf("settings of %s: %v", config, err)
	}
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	again := new(ratelimit.Handler)
	if err := caddy.StrictUnmarshalJSON(text, again); err != nil {
		t.Fatalf("StrictUnmarshalJSON(%s): %v", text, err)
	}
	twice, warned, err := again.Settings(globals)
	if err != nil || !reflect.DeepEqual(once, twice) || !reflect.DeepEqual(warnings, warned) {
		t.Errorf("settings after JSON = %+v, %q, %v, want %+v, %q", twice, warned, err, once, warnings)
	}
}

// parseOnly is UnmarshalCaddyfile of one directive.
func parseOnly(t testing.TB, input string) *ratelimit.Handler {
	t.Helper()
	h := new(ratelimit.Handler)
	if err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser(input)); err != nil {
		t.Fatalf("UnmarshalCaddyfile(%s): %v", input, err)
	}
	return h
}

// names are the zones of a configuration in the order of its sites.
func names(t *testing.T, input string) (all []string) {
	t.Helper()
	config, err := sitetest.Adapt(input)
	if err != nil {
		t.Fatalf("Adapt(%s): %v", input, err)
	}
	for _, h := range sitetest.HandlersIn(t, config) {
		for name := range h.RateLimits {
			all = append(all, name)
		}
	}
	return all
}

func TestNameOfUnnamedLimit(t *testing.T) {
	for input, want := range map[string][]string{
		"api.example.com { \n rate_limit 100/1m \n }":                                                                             {"api.example.com 100/1m"},
		"API.Example.com, b.example.com { \n rate_limit 1000/60m 10/s \n }":                                                       {"api.example.com 10/1s 1000/1h"},
		"http://a.example:9001 { \n rate_limit * 10/s \n }":                                                                       {"http://a.example:9001 10/1s"},
		"*.example.com { \n rate_limit 10/s \n }":                                                                                 {"*.example.com 10/1s"},
		":8080 { \n rate_limit 5/10s \n }":                                                                                        {":8080 5/10s"},
		"http://bücher.example { \n rate_limit 5/10s \n }":                                                                        {"http://b%c3%bccher.example 5/10s"},
		"http://a.example { \n rate_limit /x 5/1m \n rate_limit 5/1h \n }":                                                        {"http://a.example 5/1h", "http://a.example 5/1m"},
		"http://a.example { \n rate_limit /x 5/1m \n rate_limit 5/60s \n rate_limit 6/1m \n }":                                    {"http://a.example 5/1m (29fa9d)", "http://a.example 5/1m (74caf5)", "http://a.example 6/1m"},
		"http://a.example { \n rate_limit 5/1m \n handle { \n rate_limit 5/1m \n } \n }":                                          {"http://a.example 5/1m (74caf5 2)", "http://a.example 5/1m (74caf5)"},
		"http://a.example { \n respond ok \n handle_errors { \n rate_limit 5/1m \n } \n }":                                        {"http://a.example 5/1m"},
		"&(shared) { \n rate_limit 5/1m \n } \n http://a.example { \n invoke shared \n }":                                         {"&(shared) 5/1m"},
		"http://" + strings.Repeat("a", 60) + ".example { \n rate_limit 5/1m \n }":                                                {"http://" + strings.Repeat("a", 48) + "~ef2a567f 5/1m"},
		"http://a.example { \n rate_limit 1/1s 2/2s 3/3s 4/4s 5/5s 6/6s 7/7s 8/8s 9/9s 10/10s \n }":                               {"http://a.example 1/1s 2/2s 3/3s 4/4s 5/5s 6/6s 7/7s 8/8s ~7d71b9d7"},
		"(limit) { \n rate_limit 5/1m \n } \n http://a.example { \n import limit \n } \n http://b.example { \n import limit \n }": {"http://a.example 5/1m", "http://b.example 5/1m"},
	} {
		got := names(t, input)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("names of %s\n= %q, want %q", input, got, want)
		}
		for _, name := range got {
			if err := config.CheckName(name); err != nil || strings.ContainsAny(name, "{}") {
				t.Errorf("zonename.Check(%q) = %v, want a name without braces that zones can have", name, err)
			}
		}
	}
}

// Options that only tune leave the name alone, so that the counters go on.
func TestTuningKeepsTheName(t *testing.T) {
	const options = " { \n max_keys 1000 \n sync_rate local \n on_redis_loss deny \n early_sync off \n enforce 25% \n ban 15m \n headers kong \n cost {x} \n cost_default 3 \n response_cost bytes \n } \n"
	for _, site := range []string{
		"http://a.example { \n rate_limit 10/s 1000/1h%s \n }",
		"http://a.example { \n @api path /api/* \n rate_limit @api 10/s%s \n rate_limit 10/s \n }",
	} {
		plain, tuned := names(t, fmt.Sprintf(site, "")), names(t, fmt.Sprintf(site, options))
		if !slices.Equal(plain, tuned) {
			t.Errorf("names = %q with options that only tune, want %q", tuned, plain)
		}
	}
}

// someSites are as many site blocks as there are ways to write one. Each limit has its own message.
func someSites() (shared string, sites []string) {
	shared = "(limits) { \n rate_limit 5/1m { \n message {args[0]}-snippet \n } \n } \n &(limited) { \n rate_limit 5/1m { \n message route \n } \n } \n"
	for _, address := range []string{
		"http://a.example", "http://b.example", "http://a.example:9001", ":9002", "http://c.example, http://d.example", "http://*.example",
		"http://{$TIDE_TEST_SITE}", "http://{$TIDE_TEST_UNSET:default.example}", "https://e.example:8443", "b.example",
	} {
		n := len(sites)
		limit := func(before, what string) string {
			return fmt.Sprintf("%srate_limit 5/1m { \n message %d-%s \n } \n", before, n, what)
		}
		site := address + " { \n" + limit("", "plain")
		if n%2 == 0 {
			site += "rate_limit /login 5/1m { \n message " + fmt.Sprint(n) + "-login \n } \n"
		}
		if n%3 == 0 {
			site += "handle /x { \n" + limit("", "handle") + "}\n handle_errors { \n" + limit("", "errors") + "}\n"
		}
		if n%3 == 1 {
			site += "route { \n invoke limited \n } \n"
		}
		sites = append(sites, site+fmt.Sprintf("import limits %d \n}\n", n))
	}
	return shared, sites
}

// byMessage are the names of unnamed limits by the messages of their handlers.
func byMessage(t *testing.T, input string) map[string]string {
	t.Helper()
	config, err := sitetest.Adapt(input)
	if err != nil {
		t.Fatalf("Adapt(%s): %v", input, err)
	}
	all := map[string]string{}
	for _, h := range sitetest.HandlersIn(t, config) {
		for name := range h.RateLimits {
			all[h.Message] = name
		}
	}
	return all
}

// The law of unnamed limits: whatever sites come, go or move, a limit of another site keeps its
// name, and limits of two sites never have the same.
func TestOtherSitesDontChangeNames(t *testing.T) {
	t.Setenv("TIDE_TEST_SITE", "env.example")
	shared, sites := someSites()
	want := byMessage(t, shared+strings.Join(sites, ""))
	seen := map[string]string{}
	for message, name := range want {
		if other, taken := seen[name]; taken {
			t.Errorf("the limits %s and %s are both called %q", message, other, name)
		}
		seen[name] = message
	}
	if len(want) < 2*len(sites) {
		t.Fatalf("found %d limits, want more: %q", len(want), want)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		some := slices.Clone(sites)
		random.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		input := shared + strings.Join(some[:1+random.IntN(len(some))], "")
		for message, name := range byMessage(t, input) {
			if name != want[message] {
				t.Fatalf("limit %s is called %q with all sites and %q in\n%s", message, want[message], name, input)
			}
		}
	}
}

// Within a site, limits that differ keep their names wherever they stand.
func TestOrderInASiteDoesntChangeNames(t *testing.T) {
	limits := []string{
		"rate_limit 5/1m { \n message plain \n } \n", "rate_limit /x 5/1m { \n message x \n } \n", "@get method GET \n rate_limit @get 5/1m { \n message get \n } \n",
		"rate_limit 5/1m { \n message key \n key {host} \n } \n", "rate_limit 5/1m { \n message denied \n count_denied \n } \n",
	}
	want := byMessage(t, "http://a.example { \n"+strings.Join(limits, "")+"}")
	if len(want) != len(limits) {
		t.Fatalf("names = %q, want %d", want, len(limits))
	}
	slices.Reverse(limits)
	if got := byMessage(t, "http://a.example { \n"+strings.Join(limits, "")+"}"); !reflect.DeepEqual(got, want) {
		t.Errorf("names in reverse order = %q, want %q", got, want)
	}
}

// The names of unnamed limits need this unexported field of Caddy's: without it all would change.
func TestNamesNeedTheSiteOfCaddy(t *testing.T) {
	field, ok := reflect.TypeFor[httpcaddyfile.Helper]().FieldByName("parentBlock")
	if want := reflect.TypeFor[caddyfile.ServerBlock](); !ok || field.Type != want {
		t.Errorf("parentBlock of Caddy's Helper has the type %v, want %v", field.Type, want)
	}
	got := byMessage(t, "http://a.example {\nbind 127.0.0.1\nrate_limit 5/1m {\nmessage one\n}\n}")
	if want := "http://a.example@127.0.0.1 5/1m"; got["one"] != want {
		t.Errorf("names = %q, want %q", got, want)
	}
}

// Where Caddy doesn't name the site, names are made without it, and still never shared.
func TestNamesWithoutASite(t *testing.T) {
	for _, helper := range []any{struct{}{}, struct{ parentBlock int }{1}, struct{ parentBlock struct{ Keys []string } }{}, struct{ parentBlock caddyfile.ServerBlock }{}} {
		if text, ok := config.FirstKey(reflect.ValueOf(helper)); ok || text != "" {
			t.Errorf("firstKey(%+v) = %q, %t, want none", helper, text, ok)
		}
	}
	known := struct{ parentBlock caddyfile.ServerBlock }{caddyfile.ServerBlock{Keys: []caddyfile.Token{{Text: "a.example"}}}}
	if text, ok := config.FirstKey(reflect.ValueOf(known)); !ok || text != "a.example" {
		t.Errorf("firstKey = %q, %t, want a.example", text, ok)
	}
	h := parseOnly(t, "rate_limit 10/s 1000/1h")
	for name := range h.RateLimits {
		if want := "10/1s 1000/1h (74caf5)"; name != want {
			t.Errorf("name = %q, want %q", name, want)
		}
	}
}

// The order of directives: rate_limit is where the design says.
func TestDirectiveOrder(t *testing.T) {
	config, err := sitetest.Adapt("http://a.example { \n respond ok \n basic_auth { \n u $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG \n } \n rate_limit 5/1m \n try_files {path} /x \n rewrite /y \n }")
	if err != nil {
		t.Fatal(err)
	}
	var at []int
	for _, handler := range []string{`"handler":"rewrite"`, `"handler":"rate_limit"`, `"handler":"authentication"`, `"handler":"static_response"`} {
		at = append(at, bytes.LastIndex(config, []byte(handler)))
	}
	if !slices.IsSorted(at) || at[0] < 0 {
		t.Errorf("Adapt = %s, want rewrite, rate_limit, authentication, static_response in that order", config)
	}
}

// FuzzCaddyfile: the parser never panics, and what it lets through means something.
func FuzzCaddyfile(f *testing.F) {
	for _, pattern := range []string{"testdata/caddyfile/*.caddyfiletest", "testdata/errors/*.caddyfiletest"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			input, _, _ := strings.Cut(string(text), sitetest.GoldenDashes)
			if i := strings.Index(input, "rate_limit"); i >= 0 {
				f.Add(input[i:])
			}
		}
	}
	f.Add("rate_limit 5/1m {\n\tzone {\n}\n")
	f.Add("rate_limit {\n\tzone a {\n\t\tmatch {\n\t\t}\n\t\tlimit 1/s } }")
	f.Add("rate_limit {\n\tredis {\n\t\tpassword \"\n\t}\n}")
	f.Fuzz(func(t *testing.T, input string) {
		blocks, err := caddyfile.Parse("Caddyfile", []byte("http://a {\n"+input+"\n}"))
		if err != nil || strings.Contains(input, "import") {
			return
		}
		for _, block := range blocks {
			for _, segment := range block.Segments {
				fuzzSegment(t, segment)
			}
		}
	})
}

func fuzzSegment(t *testing.T, segment caddyfile.Segment) {
	_, _ = ratelimit.ParseGlobalOption(caddyfile.NewDispenser(segment), nil)
	h := new(ratelimit.Handler)
	if err := h.UnmarshalCaddyfile(caddyfile.NewDispenser(segment)); err != nil {
		return
	}
	zones, _, err := h.Settings(ratelimit.Globals(true))
	if err != nil || len(zones) == 0 {
		t.Errorf("settings = %v, %v of a handler that was let through", zones, err)
	}
	for _, s := range zones {
		if ratelimit.Fingerprint(s) == "" || len(s.Limits) == 0 && s.Bandwidth == 0 && s.Concurrent == 0 || s.Name == "" {
			t.Errorf("settings = %+v, want a name, and a limit, concurrent or bandwidth", s)
		}
	}
}

// What is adapted can be loaded.
func TestCaddyfileIsValid(t *testing.T) {
	t.Setenv("TIDE_TEST_NAMESPACE", "shop")
	files, err := filepath.Glob("testdata/caddyfile/*.caddyfiletest")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.Contains(file, "redis_storage") {
			continue // the storage of a test is none that has a Redis
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		input, _, _ := strings.Cut(string(text), sitetest.GoldenDashes)
		input = strings.ReplaceAll(input, "{env.TIDE_REGION}", "eu")
		config, err := sitetest.Adapt(input)
		if err != nil {
			t.Fatalf("Adapt(%s): %v", file, err)
		}
		var c caddy.Config
		if err := caddy.StrictUnmarshalJSON(config, &c); err != nil {
			t.Fatalf("StrictUnmarshalJSON(%s): %v", config, err)
		}
		if err := caddy.Validate(&c); err != nil {
			t.Errorf("Validate(%s): %v", file, err)
		}
	}
}
