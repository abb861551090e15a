// no clock: configurations are only read here.

package ratelimit

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// ofJSON are the settings of a handler written in JSON.
func ofJSON(t *testing.T, text string, global *config.SyncRate, hasRedis, redisEmpty bool) ([]config.Settings, []warning.Warning, error) {
	t.Helper()
	h := new(Handler)
	if err := caddy.StrictUnmarshalJSON([]byte(text), h); err != nil {
		t.Fatalf("StrictUnmarshalJSON(%s): %v", text, err)
	}
	return h.settings(globals{syncRate: global, hasRedis: hasRedis, redisEmpty: redisEmpty})
}

// oneZone is a handler with one zone.
func oneZone(zone string) string { return `{"rate_limits": {"z": {` + zone + `}}}` }

func TestSettingsDefaults(t *testing.T) {
	got, warnings, err := ofJSON(t, oneZone(`"limits": [{"max_events": 5, "window": "1m"}]`), nil, false, false)
	want := []config.Settings{{
		Name: "z", Key: "{http.vars.client_ip}", IPv4Prefix: 32, IPv6Prefix: 64, Limits: []config.Rate{{Limit: 5, Window: time.Minute}}, Kind: algorithms.SlidingWindow,
		SubWindows: 1, SyncRate: config.Local, MaxKeys: 1_000_000, EmptyKey: config.EmptyClientIP, OnRedisLoss: config.LossLocal, EarlySync: true,
	}}
	if err != nil || len(warnings) > 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("settings = %+v, %q, %v, want %+v", got, warnings, err, want)
	}
}

func TestSettingsOfEveryOption(t *testing.T) {
	got, _, err := ofJSON(t, oneZone(`"limits": [{"max_events": 9, "window": "1h"}, {"max_events": 5, "window": "1m"}, {"max_events": 3, "window": "60s"}],
		"key": "{client_ip}", "algorithm": "token_bucket", "burst": 7, "sync_rate": 0, "ipv4_prefix": 0, "ipv6_prefix": 0, "max_keys": 10,
		"empty_key": "share", "count_denied": true, "on_redis_loss": "deny", "early_sync": false`), nil, true, false)
	want := []config.Settings{{
		Name: "z", Key: "{http.vars.client_ip}", IPv4Prefix: 32, IPv6Prefix: 128, Limits: []config.Rate{{Limit: 3, Window: time.Minute}, {Limit: 9, Window: time.Hour}}, Kind: algorithms.TokenBucket,
		Burst: 7, SubWindows: 1, SyncRate: config.Strict, MaxKeys: 10, EmptyKey: config.EmptyShare, CountDenied: true, OnRedisLoss: config.LossDeny,
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("settings = %+v, %v, want %+v", got, err, want)
	}
}

// What only a bucket has implies one, where there is one limit and no algorithm.
func TestBurstAndQueueImplyTheirAlgorithm(t *testing.T) {
	for zone, want := range map[string]algorithms.Kind{
		`"burst": 7`: algorithms.TokenBucket, `"queue": 7`: algorithms.LeakyBucket, `"burst": 7, "algorithm": "gcra"`: algorithms.GCRA,
	} {
		got, _, err := ofJSON(t, oneZone(`"limits": [{"max_events": 5, "window": "1m"}], `+zone), nil, false, false)
		if err != nil || got[0].Kind != want {
			t.Errorf("settings with %s = %+v, %v, want a %s", zone, got, err, want)
		}
	}
}

// What the older plugin did stays true for a zone written for it.
func TestSettingsOfOlderPlugin(t *testing.T) {
	got, warnings, err := ofJSON(t, oneZone(`"window": "1m", "max_events": 0`), nil, false, false)
	if err != nil || got[0].Kind != algorithms.SlidingLog || got[0].Key != "" || got[0].Limits[0] != (config.Rate{Limit: 0, Window: time.Minute}) {
		t.Errorf("settings = %+v, %v, want a sliding_log of 0/1m with one count", got, err)
	}
	if len(warnings) != 0 {
		t.Errorf("warnings = %q, want none", warnings)
	}
	got, warnings, err = ofJSON(t, oneZone(`"window": "1m", "max_events": 1, "key": "x", "algorithm": "sliding_window"`), nil, false, false)
	if err != nil || got[0].Kind != algorithms.SlidingWindow || len(warnings) != 0 {
		t.Errorf("settings = %+v, %q, %v, want a sliding_window", got, warnings, err)
	}
}

func TestSyncRateIsInherited(t *testing.T) {
	second, five := config.SyncRate(time.Second), config.SyncRate(5*time.Second)
	limit := `"limits": [{"max_events": 5, "window": "1m"}]`
	zone, handler, distributed := limit+`, "sync_rate": "30ms"`, `"sync_rate": "40ms"`, `"distributed": {"read_interval": "3s", "write_interval": "2s"}`
	for _, c := range []struct {
		name, zone, handler string
		global              *config.SyncRate
		hasRedis            bool
		want                config.SyncRate
	}{
		{"nothing, no Redis", limit, "", nil, false, config.Local},
		{"nothing", limit, "", nil, true, second},
		{"global", limit, "", &five, true, five},
		{"distributed", limit, distributed, &five, true, config.SyncRate(2 * time.Second)},
		{"distributed, half given", limit, `"distributed": {"read_interval": "9s"}`, nil, true, five},
		{"handler", limit, handler + "," + distributed, &five, true, config.SyncRate(40 * time.Millisecond)},
		{"zone", zone, handler, &five, true, config.SyncRate(30 * time.Millisecond)},
		{"zone local, no Redis", limit + `, "sync_rate": -1`, "", nil, false, config.Local},
		{"handler strict", limit, `"sync_rate": 0`, &five, true, config.Strict},
	} {
		text := `{"rate_limits": {"z": {` + c.zone + `}}}`
		if c.handler != "" {
			text = strings.TrimSuffix(text, "}") + "," + c.handler + "}"
		}
		got, _, err := ofJSON(t, text, c.global, c.hasRedis, false)
		if err != nil || got[0].SyncRate != c.want {
			t.Errorf("%s: settings = %+v, %v, want sync_rate %s", c.name, got, err, c.want)
		}
	}
}

// An empty Redis lets what is inherited fall to local; a zone's own sync_rate it does not.
func TestSyncRateWithEmptyRedis(t *testing.T) {
	second := config.SyncRate(time.Second)
	limit := `"limits": [{"max_events": 5, "window": "1m"}]`
	for _, text := range []string{
		oneZone(limit),
		`{"sync_rate": 0, "rate_limits": {"z": {` + limit + `}}}`,
		`{"distributed": {}, "rate_limits": {"z": {` + limit + `}}}`,
	} {
		got, _, err := ofJSON(t, text, &second, false, true)
		if err != nil || got[0].SyncRate != config.Local {
			t.Errorf("settings of %s = %+v, %v, want sync_rate local", text, got, err)
		}
		if strings.HasPrefix(text, `{"rate_limits"`) {
			continue
		}
		if _, _, err := ofJSON(t, text, nil, false, false); err == nil || !strings.Contains(err.Error(), "`redis redis://localhost:6379`") {
			t.Errorf("settings of %s without Redis = %v, want an error that says which line to add", text, err)
		}
	}
	if _, _, err := ofJSON(t, oneZone(limit+`, "sync_rate": 1`), nil, false, true); err == nil || !strings.Contains(err.Error(), "empty value") {
		t.Errorf("settings = %v, want an error about the empty value", err)
	}
}

func TestAppCheck(t *testing.T) {
	second := config.SyncRate(time.Second)
	app := &App{SyncRate: &second}
	if err := app.check(globals{syncRate: &second}); err == nil || !strings.Contains(err.Error(), "`redis redis://localhost:6379`") {
		t.Errorf("check = %v, want an error that says which line to add", err)
	}
	if _, _, err := ofJSON(t, oneZone(`"limits": [{"max_events": 5, "window": "1m"}]`), &second, false, false); err == nil {
		t.Error("settings = nil with a global sync_rate and no Redis")
	}
	for _, redis := range [][2]bool{{true, false}, {false, true}} {
		if err := app.check(globals{syncRate: &second, hasRedis: redis[0], redisEmpty: redis[1]}); err != nil {
			t.Errorf("check(%t, %t) = %v", redis[0], redis[1], err)
		}
	}
	if err := (&App{StrictTimeout: -1}).check(globals{}); err == nil {
		t.Error("check = nil with a negative strict_timeout")
	}
}

// What a Caddyfile can't say, JSON can.
func TestSettingsDenies(t *testing.T) {
	limit := `"limits": [{"max_events": 5, "window": "1m"}]`
	for text, want := range map[string]string{
		oneZone(``): `zone "z": parsing limit: there is none`,
		oneZone(`"limits": [{"max_events": -1, "window": "1m"}]`):                   `zone "z": parsing limit: the number -1 is negative`,
		oneZone(`"limits": [{"max_events": 1}]`):                                    `zone "z": parsing limit: the window 0s is empty`,
		oneZone(`"limits": [{"max_events": 1, "window": -1}]`):                      `is negative`,
		oneZone(`"limits": [{"max_events": 1, "window": -9223372036854775808}]`):    `is negative; write 3650d`,
		oneZone(`"limits": [{"max_events": 1, "window": 9223372036854775807}]`):     `is too long`,
		oneZone(`"window": "1m"`):                                                   `parsing window: there is no number of events`,
		oneZone(`"max_events": 1`):                                                  `parsing events: there is no window`,
		oneZone(`"window": "1m", "max_events": -1`):                                 `is negative`,
		oneZone(limit + `, "window": "1m", "max_events": 1`):                        `keep one of the two`,
		oneZone(limit + `, "algorithm": "Sliding_Window"`):                          `did you mean sliding_window?`,
		oneZone(limit + `, "algorithm": "gcra", "burst": -1`):                       `parsing burst: -1 is too small`,
		oneZone(limit + `, "sub_windows": 0`):                                       `parsing sub_windows: 0 is not between 1 and 31`,
		oneZone(limit + `, "algorithm": "leaky_bucket", "queue": 1000000000000000`): `longer than ten years`,
		oneZone(limit + `, "ipv6_prefix": 129`):                                     `parsing ipv6_prefix: 129 is not between 0 and 128`,
		oneZone(limit + `, "ipv4_prefix": -1`):                                      `parsing ipv4_prefix: -1 is not between 0 and 32`,
		oneZone(limit + `, "max_keys": -1`):                                         `parsing max_keys`,
		oneZone(limit + `, "key": "{http.request.remote_ip}"`):                      `{client_ip}`,
		oneZone(limit + `, "sync_rate": 1`):                                         `needs Redis`,
		`{"rate_limits": {"z": null}}`:                                              `it is null`,
		`{"rate_limits": {"": {` + limit + `}}}`:                                    `parsing zone name: it is empty`,
		`{"rate_limits": {"ä": {` + limit + `}}}`:                                   `not printable ASCII`,
		`{"rate_limits": {"a\nb": {` + limit + `}}}`:                                `not printable ASCII`,
		`{"status_code": 200}`:                                                      `parsing status: 200`,
		`{"headers": [""]}`:                                                         `parsing headers: an empty name`,
		`{"headers": ["off", "ietf"]}`:                                              `parsing headers: off is given together`,
		`{"jitter": -0.1}`:                                                          `parsing jitter`,
		`{"sweep_interval": -1}`:                                                    `parsing sweep_interval`,
		`{"storage": {"module": "file_system"}}`:                                    `parsing storage: counts are synced through Redis`,
		`{"distributed": {"read_interval": -1}}`:                                    `parsing distributed: read_interval`,
	} {
		got, _, err := ofJSON(t, text, nil, false, false)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("settings of %s = %+v, %v, want an error with %s", text, got, err, want)
		}
	}
}

func TestSettingsWarnsOfSlips(t *testing.T) {
	_, warnings, err := ofJSON(t, oneZone(`"limits": [{"max_events": 5, "window": "1m"}], "key": "{remote_ip}"`), nil, false, false)
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0].Text, `zone "z": `) || !strings.Contains(warnings[0].Text, "{client_ip}") {
		t.Errorf("settings = %q, %v, want a warning about {remote_ip}", warnings, err)
	}
}

func TestSettingsWarnsOfNoZone(t *testing.T) {
	if all, warnings, err := ofJSON(t, `{}`, nil, false, false); err != nil || len(all) != 0 || len(warnings) != 1 {
		t.Errorf("settings = %v, %q, %v, want a warning", all, warnings, err)
	}
}

// fingerprint is all of the settings but the name, as text.
func fingerprint(s config.Settings) string { return strings.Join(s.Lines(), "\n") }

// Every option of a zone but its matchers and the older plugin's words shows in the fingerprint, so
// none can differ unseen.
func TestFingerprintSeesEveryOption(t *testing.T) {
	base := `{"limits": [{"max_events": 5, "window": "1m"}], "algorithm": "token_bucket"}`
	seen := map[string]string{}
	for _, change := range []string{
		`{}`, `{"limits": [{"max_events": 6, "window": "1m"}]}`, `{"limits": [{"max_events": 5, "window": "2m"}]}`, `{"key": "x"}`, `{"algorithm": "gcra"}`, `{"burst": 3}`,
		`{"algorithm": "sliding_window"}`, `{"algorithm": "sliding_window", "sub_windows": 2}`, `{"algorithm": "leaky_bucket", "queue": 1}`, `{"algorithm": "leaky_bucket", "queue": 2}`,
		`{"algorithm": "fixed_window", "limits": [{"max_events": 5, "window": "month"}]}`, `{"algorithm": "fixed_window", "limits": [{"max_events": 5, "window": "month"}], "calendar": {"zone": "UTC", "from": 2}}`,
		`{"algorithm": "fixed_window", "limits": [{"max_events": 5, "window": "month"}], "calendar": {"zone": "Asia/Kathmandu"}}`,
		`{"sync_rate": -1}`, `{"sync_rate": 0}`, `{"ipv4_prefix": 24}`, `{"ipv6_prefix": 56}`, `{"max_keys": 7}`, `{"empty_key": "skip"}`, `{"count_denied": true}`,
		`{"on_redis_loss": "allow"}`, `{"early_sync": false}`, `{"regions": true}`, `{"enforce": 0}`, `{"enforce": 0.25}`,
		`{"ban": {"for": "1m"}}`, `{"ban": {"for": "2m"}}`, `{"ban": {"for": "1m", "after": {"max_events": 3, "window": "1m"}}}`, `{"ban": {"for": "1m", "growing": "1h"}}`,
		`{"bandwidth": "1MiB/s"}`, `{"bandwidth": 1000}`, `{"concurrent": 4}`, `{"concurrent": 5}`,
		`{"reserve": [{"share": 0.2, "match": [{"path": ["/"]}]}]}`, `{"reserve": [{"share": 0.2, "match": [{"path": ["/"]}]}, {"share": 0.2, "match": [{"path": ["/"]}]}]}`,
	} {
		zone := new(Zone)
		for _, text := range []string{base, change} {
			if err := json.Unmarshal([]byte(text), zone); err != nil {
				t.Fatal(err)
			}
		}
		s, _, err := zone.settings(config.Local+2e9, globals{hasRedis: true, hasRegions: zone.Regions != nil})
		if err != nil {
			t.Fatalf("settings of %s: %v", change, err)
		}
		if other, taken := seen[fingerprint(s)]; taken {
			t.Errorf("fingerprint of %s is that of %s: %s", change, other, fingerprint(s))
		}
		seen[fingerprint(s)] = change
	}
	// What zones of one name need not have in common, and what is set of no zone.
	own := []string{"Name", "CountsDenials", "Cost", "ResponseCost"}
	for field := range reflect.TypeFor[config.Settings]().Fields() {
		if _, tagged := field.Tag.Lookup("option"); tagged == slices.Contains(own, field.Name) {
			t.Errorf("config.Settings.%s has an option tag: %t. With one, zones of one name have it in common, and the list above needs a line that sets it; without, name it in the list of those that may differ", field.Name, tagged)
		}
	}
}

// Which requests match and which headers tell of them is not a setting: zones of one name may match
// different ones.
func TestMatchersAreNoSetting(t *testing.T) {
	zone := Zone{Limits: []Limit{{MaxEvents: &config.Events{Number: 5}, Window: config.Window(time.Minute)}}}
	want, _, err := zone.settings(config.Local, globals{})
	if err != nil {
		t.Fatal(err)
	}
	zone.MatcherSetsRaw = caddyhttp.RawMatcherSets{{"path": json.RawMessage(`["/x"]`)}}
	zone.ExceptRaw, zone.Headers = zone.MatcherSetsRaw, []string{"off"}
	if got, _, err := zone.settings(config.Local, globals{}); err != nil || fingerprint(got) != fingerprint(want) {
		t.Errorf("fingerprint = %s, %v, want %s", fingerprint(got), err, fingerprint(want))
	}
}

// FuzzJSON: no JSON makes it panic, and what it lets through means something, and the same when it
// has been written and read again.
func FuzzJSON(f *testing.F) {
	for _, zone := range []string{
		`"limits": [{"max_events": 5, "window": "1m"}]`, `"window": "1m", "max_events": 0`, `"limits": [{"max_events": 9, "window": 60000000000}], "key": "{client_ip}-{http.request.host}"`,
		`"limits": [{"max_events": 9, "window": "1h"}, {"max_events": 5, "window": "1m"}], "algorithm": "token_bucket", "burst": 7, "sync_rate": 0, "ipv4_prefix": 0, "max_keys": 10, "empty_key": "share"`,
		`"limits": [{"max_events": 1, "window": "10s"}], "algorithm": "leaky_bucket", "queue": 3, "sync_rate": "local"`,
		`"limits": [{"max_events": 1, "window": "10s"}], "algorithm": "sliding_window", "sub_windows": 31, "count_denied": true, "on_redis_loss": "divide", "early_sync": false`,
		`"limits": [{"max_events": -1, "window": -1}], "burst": -9223372036854775808`,
	} {
		f.Add([]byte(oneZone(zone)))
	}
	f.Add([]byte(`{"rate_limits": {"z": {"match": [{"path": ["/a"]}], "limits": []}}, "sync_rate": 0.25, "jitter": 1e300, "status_code": 99, "headers": ["kong", "off"], "distributed": {"read_interval": 1}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		h := new(Handler)
		if caddy.StrictUnmarshalJSON(text, h) != nil {
			return
		}
		written, err := json.Marshal(h)
		if err != nil {
			t.Fatalf("Marshal of %s: %v", text, err)
		}
		zones, _, err := h.settings(globals{hasRedis: true})
		if err != nil {
			return
		}
		again := new(Handler)
		if err := caddy.StrictUnmarshalJSON(written, again); err != nil {
			t.Fatalf("%s is written as %s: %v", text, written, err)
		}
		if same, _, err := again.settings(globals{hasRedis: true}); err != nil || !reflect.DeepEqual(same, zones) {
			t.Fatalf("%s is written as %s, which means %+v, %v, want %+v", text, written, same, err, zones)
		}
		for _, s := range zones {
			if fingerprint(s) == "" || len(s.Limits) == 0 || s.MaxKeys < 1 || s.SubWindows < 1 || s.Burst < 0 || s.Queue < 0 {
				t.Fatalf("settings = %+v of %s", s, text)
			}
			z, err := limits.NewZone(limits.ZoneOptions{Settings: s})
			if err != nil {
				t.Fatal(err)
			}
			for l := range z.Each {
				d := l.Take(keys.KeyOf(nil), nil, clock.Now(), 1, 0)
				if d.Remaining < 0 || d.Retry < 0 || !d.Allowed && d.Retry == 0 || d.Allowed && l.Rate.Limit == 0 {
					t.Fatalf("the first request of %+v: %+v", s, d)
				}
			}
			z.Release()
		}
	})
}

func TestOlderKeysThatMeanTheAddress(t *testing.T) {
	inOlderWords := `"window": "1h", "max_events": 2, "key": `
	for key, codes := range map[string][]string{
		`"{http.request.remote_ip}"`:                         nil,
		`"{http.request.client_ip}"`:                         nil,
		`"{http.request.client_ip}{http.request.remote_ip}"`: nil,
		`"{remote_ip}"`:                                      {warning.UnknownKey},
		`"{ip}"`:                                             {warning.UnknownKey},
		`"{ip}", "empty_key": "share"`:                       {warning.UnknownKey},
		`"{client_ip}"`:                                      nil,
		`"{http.request.remote.host}"`:                       nil,
	} {
		_, warnings, err := ofJSON(t, oneZone(inOlderWords+key), nil, false, false)
		var got []string
		for _, w := range warnings {
			got = append(got, w.Code)
			if !strings.Contains(w.Text, "{client_ip}") {
				t.Errorf("the warning of %s is %q, want one that names {client_ip}", key, w.Text)
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

// besideLimits are options of a zone in JSON, and what they bring along.
var besideLimits = map[string]string{
	"limits from requests": `"limits": [{"max_events": "{http.request.header.Limit}", "window": "1h", "default": 2}]`,
	"key":                  `"key": "all"`, "concurrent": `"concurrent": 2`, "bandwidth": `"bandwidth": "1kB/s"`, "burst": `"burst": 2`, "sub_windows": `"sub_windows": 2`, "queue": `"queue": 2`,
	"count_denied": `"count_denied": true`, "count_responses": `"count_responses": {"status_code": [401]}`,
	"cost": `"cost": [{"units": 2}]`, "cost_default": `"cost": [{"units": "{http.request.header.Units}"}], "cost_default": 2`,
	"response_cost": `"response_cost": [{"header": "X-Cost"}]`, "response_cost_default": `"response_cost": [{"header": "X-Cost"}], "response_cost_default": 2`,
	"reserve": `"key": "all", "reserve": [{"share": 0.5, "match": [{"header": {"X-Plan": ["paid"]}}]}]`, "ban": `"ban": {"for": "1h"}`,
	"enforce": `"enforce": 0.5`, "empty_key": `"empty_key": "skip"`, "on_redis_loss": `"on_redis_loss": "deny"`, "early_sync": `"early_sync": false`, "max_keys": `"max_keys": 2`,
	"ipv6_prefix": `"ipv6_prefix": 32`, "ipv4_prefix": `"ipv4_prefix": 16`, "headers": `"headers": ["kong"]`,
	"match": `"match": [{"header": {"A": ["b"]}}]`, "except": `"except": [{"header": {"A": ["b"]}}]`,
	"sync_rate strict": `"sync_rate": "strict"`, "sync_rate 1s": `"sync_rate": "1s"`, "sync_rate local": `"sync_rate": "local"`,
}

// A limit in the older plugin's words is one in others, beside each other option.
func TestOlderWordsGoWithWhatALimitGoesWith(t *testing.T) {
	for name, option := range besideLimits {
		of := func(limit string) (all []any) {
			zone := map[string]any{"algorithm": "sliding_window", "key": "{http.request.header.K}", "empty_key": "share"}
			switch name {
			case "burst", "cost", "response_cost":
				zone["algorithm"] = "token_bucket"
			case "queue":
				zone["algorithm"] = "leaky_bucket"
			case "limits from requests": // are limits
				return nil
			}
			for _, text := range []string{limit, option} {
				if err := json.Unmarshal([]byte("{"+text+"}"), &zone); err != nil {
					t.Fatal(err)
				}
			}
			text, err := json.Marshal(zone)
			if err != nil {
				t.Fatal(err)
			}
			settings, warnings, err := ofJSON(t, oneZone(string(text[1:len(text)-1])), nil, true, false)
			return []any{settings, warnings, fmt.Sprint(err)}
		}
		got, want := of(`"window": "1h", "max_events": 2`), of(`"limits": [{"max_events": 2, "window": "1h"}]`)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s beside window and events:\n got %+v\nwant %+v", name, got, want)
		}
	}
}

// What follows is what the tests of package ratelimit_test see of this one.

// Globals are the globals of an app with Redis, or without.
func Globals(hasRedis bool) globals { return globals{hasRedis: hasRedis} }

// Settings are those of a handler beside an app.
func (h *Handler) Settings(g globals) ([]config.Settings, []warning.Warning, error) {
	return h.settings(g)
}

// Checked are an app's globals as they are written, and whether they can be.
func (a *App) Checked() (globals, error) {
	g := a.globalsAsWritten()
	return g, a.check(g)
}

// WithoutErrorRoutes has the handler know that no request goes to an error route.
func (h *Handler) WithoutErrorRoutes() *Handler {
	h.answers.NoErrorRoutes = true
	return h
}

var (
	ParseGlobalOption = parseGlobalOption
	Fingerprint       = fingerprint
)
