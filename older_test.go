package ratelimit

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// older is a zone in the older plugin's words.
func older(name, options string) string {
	return zoneBlock(name, "window 1h\nevents 2\n"+options)
}

// jsonSite is a site whose handler is written in JSON.
func jsonSite(t *testing.T, text string) *site {
	t.Helper()
	h := new(Handler)
	if err := caddy.StrictUnmarshalJSON([]byte(text), h); err != nil {
		t.Fatal(err)
	}
	s, err := tryHandler(t, new(caddy.Config), &App{}, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	return s
}

// Placeholders that don't exist and were meant for the client's address count by it, in Caddyfiles and JSON.
func TestOlderKeysThatMeanTheAddressCountByIt(t *testing.T) {
	for _, key := range []string{
		"{http.request.remote_ip}", "{http.request.client_ip}", "{http.request.Remote_IP}", "{remote_ip}", "{remote.ip}",
		"{http.request.remote_ip}{http.request.host}", `"{http.request.client_ip} {http.request.method}"`,
	} {
		s := newSite(t, &App{}, older("address", "key "+key))
		s.admits("192.0.2.1", 3, 2)
		s.admits("192.0.2.2", 3, 2)
		s.end()

		text, _ := json.Marshal(strings.Trim(key, `"`))
		s = jsonSite(t, oneZone(`"key": `+string(text)+`, "window": "1h", "max_events": 2`))
		s.admits("192.0.2.1", 3, 2)
		s.admits("192.0.2.2", 3, 2)
		s.end()
	}
}

func TestOlderKeysThatMeanTheAddressAreWarnedOf(t *testing.T) {
	inOlderWords := `"window": "1h", "max_events": 2, "key": `
	for key, codes := range map[string][]string{
		`"{http.request.remote_ip}"`:                         {codeMeantAddress},
		`"{http.request.client_ip}"`:                         {codeMeantAddress},
		`"{http.request.client_ip}{http.request.remote_ip}"`: {codeMeantAddress, codeMeantAddress},
		`"{remote_ip}"`:                                      {codeUnknownKey},
		`"{client_ip}"`:                                      nil,
		`"{http.request.remote.host}"`:                       nil,
	} {
		_, warnings, err := ofJSON(t, oneZone(inOlderWords+key), nil, false, false)
		var got []string
		for _, w := range warnings {
			got = append(got, w.code)
			if !strings.Contains(w.text, "{client_ip}") {
				t.Errorf("the warning of %s is %q, want one that names {client_ip}", key, w.text)
			}
		}
		if err != nil || strings.Join(got, " ") != strings.Join(codes, " ") {
			t.Errorf("settings with the key %s warn with %q, %v, want %q", key, got, err, codes)
		}
	}
	for _, words := range []string{`"limits": [{"max_events": 2, "window": "1h"}]`, `"limits": [{"max_events": 2, "window": "1h"}], "algorithm": "sliding_log"`} {
		if _, _, err := ofJSON(t, oneZone(words+`, "key": "{http.request.remote_ip}"`), nil, false, false); err == nil {
			t.Errorf("a zone with %s and the key {http.request.remote_ip} loads, want an error", words)
		}
	}
	if _, _, err := ofJSON(t, oneZone(inOlderWords+`"{http.request.hots}"`), nil, false, false); err == nil {
		t.Error("a zone in the older plugin's words with a placeholder that means no address loads, want an error")
	}
}

// The older plugin makes one key of the empty text, so requests without what the key is made of have one count.
func TestOlderZonesCountEmptyKeysTogether(t *testing.T) {
	const apiKey = "key {http.request.header.X-Api-Key}\n"
	s := newSite(t, &App{}, older("share", apiKey))
	s.admits("192.0.2.1", 1, 1)
	s.admits("192.0.2.2", 2, 1)
	s.admits("192.0.2.3", 1, 0)
	s.admits("192.0.2.3", 3, 2, header("X-Api-Key", "k"))
	s.end()

	s = newSite(t, &App{}, older("chosen", apiKey+"empty_key client_ip"))
	s.admits("192.0.2.1", 3, 2)
	s.admits("192.0.2.2", 3, 2)
	s.end()

	s = newSite(t, &App{}, zoneBlock("new", "limit 2/1h\n"+apiKey))
	s.admits("192.0.2.1", 3, 2)
	s.admits("192.0.2.2", 3, 2)
	s.end()

	s = jsonSite(t, oneZone(`"key": "{http.request.header.X-Api-Key}", "window": "1h", "max_events": 2`))
	s.admits("192.0.2.1", 2, 2)
	s.admits("192.0.2.2", 1, 0)
}

// Early data gives no address to {remote_host}, whoever sends it. That is no reason to count all clients together.
func TestOlderZonesDontCountEarlyDataTogether(t *testing.T) {
	early := func(r *http.Request) { r.TLS = &tls.ConnectionState{} }
	s := newSite(t, &App{}, older("early", "key {http.request.remote.host}"))
	s.admits("192.0.2.1", 3, 2, early)
	s.admits("192.0.2.2", 3, 2, early)
}

// JSON in the shapes of other rate limiters is refused with what to write instead, and unknown fields are refused everywhere.
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
		`{"flavour": "sweet"}`:                         `unknown field "flavour"`,
		`{"rate_limits": {"z": {"flavour": "sweet"}}}`: `unknown field "flavour"`,
		`{"distributed": {"flavour": "sweet"}}`:        `unknown field "flavour"`,
	} {
		h := new(Handler)
		if err := caddy.StrictUnmarshalJSON([]byte(text), h); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("StrictUnmarshalJSON(%s) = %v, want an error with %s", text, err, want)
		}
	}
}
