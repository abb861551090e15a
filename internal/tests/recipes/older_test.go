package recipes_test

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// oneZone is a handler with one zone.
func oneZone(zone string) string { return `{"rate_limits": {"z": {` + zone + `}}}` }

// older is a zone in the older plugin's words.
func older(name, options string) string {
	return sitetest.ZoneBlock(name, "window 30d\nevents 2\n"+options)
}

// jsonSite is a site whose handler is written in JSON.
func jsonSite(t *testing.T, text string) *sitetest.Site {
	t.Helper()
	h := new(ratelimit.Handler)
	if err := caddy.StrictUnmarshalJSON([]byte(text), h); err != nil {
		t.Fatal(err)
	}
	s, err := sitetest.TryHandler(t, new(caddy.Config), &ratelimit.App{}, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.End)
	return s
}

// Placeholders that don't exist and were meant for the client's address count by it, in Caddyfiles
// and JSON.
func TestOlderKeysThatMeanTheAddressCountByIt(t *testing.T) {
	for _, key := range []string{
		"{http.request.remote_ip}", "{http.request.client_ip}", "{http.request.Remote_IP}", "{remote_ip}", "{remote.ip}",
		"{http.request.remote_host}", "{remote_host}",
		"{http.request.remote_ip}{http.request.host}", `"{http.request.client_ip} {http.request.method}"`,
	} {
		s := sitetest.NewSite(t, &ratelimit.App{}, older("address", "key "+key))
		s.Admits("192.0.2.1", 3, 2)
		s.Admits("192.0.2.2", 3, 2)
		s.End()

		text, _ := json.Marshal(strings.Trim(key, `"`))
		s = jsonSite(t, oneZone(`"key": `+string(text)+`, "window": "720h", "max_events": 2`))
		s.Admits("192.0.2.1", 3, 2)
		s.Admits("192.0.2.2", 3, 2)
		s.End()
	}
}

// The older plugin makes one key of the empty text, so requests without what the key is made of
// have one count.
func TestOlderZonesCountEmptyKeysTogether(t *testing.T) {
	const apiKey = "key {http.request.header.X-Api-Key}\n"
	s := sitetest.NewSite(t, &ratelimit.App{}, older("share", apiKey))
	s.Admits("192.0.2.1", 1, 1)
	s.Admits("192.0.2.2", 2, 1)
	s.Admits("192.0.2.3", 1, 0)
	s.Admits("192.0.2.3", 3, 2, sitetest.Header("X-Api-Key", "k"))
	s.End()

	s = sitetest.NewSite(t, &ratelimit.App{}, older("chosen", apiKey+"empty_key client_ip"))
	s.Admits("192.0.2.1", 3, 2)
	s.Admits("192.0.2.2", 3, 2)
	s.End()

	s = sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("new", "limit 2/30d\n"+apiKey))
	s.Admits("192.0.2.1", 3, 2)
	s.Admits("192.0.2.2", 3, 2)
	s.End()

	s = jsonSite(t, oneZone(`"key": "{http.request.header.X-Api-Key}", "window": "720h", "max_events": 2`))
	s.Admits("192.0.2.1", 2, 2)
	s.Admits("192.0.2.2", 1, 0)
}

// JSON in the shapes of other rate limiters is refused with what to write instead, and unknown
// fields are refused everywhere.
//
// no clock: these are refused.
func TestOtherShapesOfJSONAreRefusedWithAHint(t *testing.T) {
	for text, want := range map[string]string{
		`{"rate_limits": [{"name": "login", "max_events": 5, "window": "1m"}]}`: `write an object of zones by their names, like {"login"`,
		`{"rate_limits": {"z": [{"max_events": 5, "window": "1m"}]}}`:           `write an object with the list in it, like {"limits"`,
		`{"rate_limits": {"z": {"limits": ["5/1m"]}}}`:                          `write each rate as an object, like {"max_events": 100, "window": "1m"}`,
		`{"rate_limits": {"z": {"limits": "5/1m"}}}`:                            `write a list; write each rate`,
		`{"rate_limits": {"z": {"limits": {"max_events": 5, "window": "1m"}}}}`: `write a list; write each rate`,
		`{"key": "{remote.ip}", "rate": "10r/s", "zone_size": 100000}`:          `it belongs into a zone, like {"rate_limits"`,
		`{"rate_limits": {"z": {"limit": "5/1m"}}}`:                             `write limits, like "limits"`,
		`{"rate_limits": {"z": {"events": 5, "window": "1m"}}}`:                 `write max_events`,
		`{"rate_limits": {"z": {"limits": [{"events": 5, "window": "1m"}]}}}`:   `write max_events`,
		`{"rate_limits": {"z": {"enforce": "25%"}}}`:                            `write a share as a number from 0 to 1, without quotes, like 0.25 for 25%, and 0 for off`,
		`{"jitter": "10%"}`:                                    `write a share as a number from 0 to 1`,
		`{"rate_limits": {"z": {"headers": "off"}}}`:           `write a list of names, like ["ietf"]`,
		`{"rate_limits": {"z": {"except": ["@a"]}}}`:           `write each set of matchers as an object, like {"path"`,
		`{"rate_limits": {"z": {"except": ["10.0.0.0/8"]}}}`:   `{"client_ip": {"ranges": ["10.0.0.0/8"]}}`,
		`{"rate_limits": {"z": {"except": {"path": ["/a"]}}}}`: `write a list; write each set of matchers`,
		`{"flavour": "sweet"}`:                                 `unknown field "flavour"`,
		`{"rate_limits": {"z": {"flavour": "sweet"}}}`:         `unknown field "flavour"`,
		`{"distributed": {"flavour": "sweet"}}`:                `unknown field "flavour"`,
	} {
		h := new(ratelimit.Handler)
		if err := caddy.StrictUnmarshalJSON([]byte(text), h); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("StrictUnmarshalJSON(%s) = %v, want an error with %s", text, err, want)
		}
	}
	for text, want := range map[string]string{
		`{"redis": "redis://localhost:6379"}`: `write an object, like {"url": "redis://localhost:6379/0"}`,
		`{"redis": {"flavour": "sweet"}}`:     `unknown field "flavour"`,
	} {
		if err := caddy.StrictUnmarshalJSON([]byte(text), new(ratelimit.App)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("StrictUnmarshalJSON(%s) = %v, want an error with %s", text, err, want)
		}
	}
}

// olderStep is a request to one of a configuration's handlers, after a while.
type olderStep struct {
	after   time.Duration
	handler int
	ip      string
	change  func(*http.Request)
	want    int
}

func posted(r *http.Request) { r.Method = http.MethodPost }

// asks is for a path with a header, if that has a value.
func asks(path, name, value string) func(*http.Request) {
	return func(r *http.Request) {
		sitetest.To(path)(r)
		if value != "" {
			r.Header.Set(name, value)
		}
	}
}

// Configurations in the shapes that people publish for the older plugin, request by request. The
// expectations are the older plugin's, except where the key was meant for the client's address.
var olderConfigurations = map[string][]olderStep{
	"remote_ip": {
		{0, 0, "192.0.2.1", nil, 200}, {time.Second, 0, "192.0.2.1", nil, 200}, {time.Second, 0, "192.0.2.1", nil, 429},
		// there: 429 from the first on
		{0, 0, "192.0.2.2", nil, 200}, {0, 0, "192.0.2.2", nil, 200}, {0, 0, "192.0.2.2", nil, 429},
		{57 * time.Second, 0, "192.0.2.1", nil, 429}, {2 * time.Second, 0, "192.0.2.1", nil, 200}, {0, 0, "192.0.2.1", nil, 200}, {0, 0, "192.0.2.1", nil, 429},
		{0, 1, "192.0.2.1", nil, 200}, {0, 1, "192.0.2.1", nil, 200}, {4 * time.Second, 1, "192.0.2.1", nil, 200}, {0, 1, "192.0.2.1", nil, 429},
		{2 * time.Second, 1, "192.0.2.1", nil, 200}, {0, 1, "192.0.2.1", nil, 200}, {0, 1, "192.0.2.1", nil, 429},
	},
	"static_and_dynamic": {
		{0, 0, "192.0.2.1", nil, 200}, {0, 0, "192.0.2.2", nil, 200}, {0, 0, "192.0.2.3", nil, 200}, {0, 0, "192.0.2.4", nil, 429},
		{0, 0, "192.0.2.4", posted, 200}, {3 * time.Second, 0, "192.0.2.4", posted, 200}, {0, 0, "192.0.2.4", posted, 429}, {0, 0, "192.0.2.5", posted, 200},
		{3 * time.Second, 0, "192.0.2.4", posted, 200}, {0, 0, "192.0.2.4", posted, 429}, {0, 0, "192.0.2.4", nil, 429}, {55 * time.Second, 0, "192.0.2.4", nil, 200},
	},
	"api_keys": {
		{0, 0, "192.0.2.1", asks("/v1/a", "X-Api-Key", "k1"), 200}, {0, 0, "192.0.2.2", asks("/v1/b", "X-Api-Key", "k1"), 200}, {0, 0, "192.0.2.3", asks("/v1/c", "X-Api-Key", "k1"), 429},
		{0, 0, "192.0.2.1", asks("/v1/a", "X-Api-Key", "k2"), 200}, {0, 0, "192.0.2.1", asks("/v1/a", "", ""), 200}, {0, 0, "192.0.2.1", asks("/v1/a", "", ""), 200},
		{0, 0, "192.0.2.1", asks("/v1/a", "", ""), 200}, // the zone asks for the header
		{0, 0, "192.0.2.1", asks("/v2/a", "", ""), 200}, {0, 0, "192.0.2.2", asks("/v2/a", "", ""), 200}, {0, 0, "192.0.2.3", asks("/v2/a", "", ""), 429},
		{0, 0, "192.0.2.3", asks("/v2/a", "Authorization", "Bearer t"), 200}, {0, 0, "192.0.2.3", asks("/", "", ""), 200},
	},
	"snippet": {
		{0, 0, "192.0.2.1", sitetest.To("/a"), 200}, {0, 1, "192.0.2.1", sitetest.To("/a"), 200}, {0, 0, "192.0.2.1", sitetest.To("/a"), 429}, {0, 1, "192.0.2.1", sitetest.To("/a"), 429},
		{0, 1, "192.0.2.1", sitetest.To("/b"), 200}, {0, 1, "192.0.2.2", sitetest.To("/a"), 200}, {11 * time.Second, 1, "192.0.2.1", sitetest.To("/a"), 200},
	},
}

func TestOlderConfigurationsRequestByRequest(t *testing.T) {
	for name, steps := range olderConfigurations {
		text, err := os.ReadFile("testdata/caddyfile/older_plugin_" + name + ".caddyfiletest")
		if err != nil {
			t.Fatal(err)
		}
		input, _, _ := strings.Cut(string(text), sitetest.GoldenDashes)
		config, err := sitetest.Adapt(input)
		if err != nil {
			t.Fatalf("Adapt(%s): %v", name, err)
		}
		synctest.Test(t, func(t *testing.T) {
			var sites []*sitetest.Site
			for _, h := range sitetest.HandlersIn(t, config) {
				s, err := sitetest.TryHandler(t, new(caddy.Config), &ratelimit.App{}, h)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				defer s.End()
				sites = append(sites, s)
			}
			for i, step := range steps {
				time.Sleep(step.after)
				s := sites[step.handler]
				got := s.Send(s.Request(step.ip, func(r *http.Request) {
					if step.change != nil {
						step.change(r)
					}
				}))
				if got.Status != step.want {
					t.Errorf("%s: request %d, of %s after %v: %d, want %d", name, i, step.ip, step.after, got.Status, step.want)
				}
			}
		})
	}
}
