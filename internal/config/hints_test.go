package config

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func TestUnknown(t *testing.T) {
	for _, c := range []struct {
		option string
		block  Block
		want   string
	}{
		{"burts", Zone, "did you mean burst?"},
		{"message", Zone, "message is not an option of a zone"},
		{"url", Handler, "like `redis redis://localhost:6379`, in the global option rate_limit at the top"},
		{"key_prefix", Redis, "write `namespace` beside redis"},
		{"disable_placeholders", Handler, "remove it: nothing stands in its place"},
		{"header", Handler, "in the block of `match`"},
		{"whitelist", Handler, "like `except private_ranges`, into the block of a zone, like `zone login`"},
		{"shadow", Global, "write `enforce off`, into the block after rate_limit in a site"},
		{"requests", Handler, "write `limit`, with its window, like `limit 100/1m`, into the block of a zone, like `zone login`"},
		{"error_code", Zone, "write `status`, outside of the zone"},
		{"match_path", Zone, "; write `match { path … }`"},
		{"except_client_ip", Handler, "; write `except { client_ip … }`, into the block of a zone, like `zone login`"},
		{"match_paths", Zone, "did you mean match?"},
		{"ipv6_prefix_len", Zone, "did you mean ipv6_prefix?"},
		{"limit_by", Zone, "write `key`"},
		{"status_code", Zone, "write `status`"},
		{"path", Zone, "put it into the block of match"},
		{"path", Handler, "put it into the match block of a zone"},
		{"respond", Distributed, "close the block before it"},
		{"{", Zone, "remove the braces"},
		{"persist", Zone, "into rate_limit there, as `persist /var/lib/caddy/rate_limit`"},
		{"zone", Global, "belongs into a site"},
		{"key", Global, "belongs into a site"},
		{"namespace", Redis, "an option beside redis"},
		{"adress", Redis, "did you mean address?"},
		{strings.Repeat("x", 1000), Distributed, "the options are read_interval, write_interval, purge_age"},
	} {
		if got := UnknownOption(c.option, c.block).Error(); !strings.Contains(got, c.want) || len(got) > 600 {
			t.Errorf("Unknown(%q) = %s, want %s in it", c.option, got, c.want)
		}
	}
}

// What is right in the block is not sent to another one.
func TestUnknownInTheRightBlock(t *testing.T) {
	for option, want := range map[string]string{"error_code": "write `status`", "error_message": "write `message`"} {
		if got := UnknownOption(option, Handler).Error(); !strings.HasSuffix(got, want) {
			t.Errorf("Unknown(%q) = %s, want %s at its end", option, got, want)
		}
	}
}

func TestExample(t *testing.T) {
	for option, want := range map[string]string{"limit": "limit 100/1m", "sync_rate": "sync_rate 1s", "db": "db 0", "username": "username tide", "x": "x <value>"} {
		if got := ExampleOf(option); got != want {
			t.Errorf("Example(%q) = %q, want %q", option, got, want)
		}
	}
}

func TestChoose(t *testing.T) {
	names := []string{"sliding_window", "sliding_log", "gcra"}
	for value, want := range map[string]int{"": 0, "sliding_window": 0, "gcra": 2} {
		if got, err := ChooseName[int](value, names); err != nil || got != want {
			t.Errorf("Choose(%q) = %d, %v, want %d", value, got, err, want)
		}
	}
	for value, want := range map[string]string{"slidinglog": "did you mean sliding_log?", "ring_buffer": "did you mean sliding_log?", "leaky": "write one of sliding_window, sliding_log, gcra"} {
		if _, err := ChooseName[int](value, names); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Choose(%q) = %v, want %s", value, err, want)
		}
	}
}

func TestNoRateFirst(t *testing.T) {
	for line, want := range map[string]string{
		"100":                                 "",
		"often":                               "\"often\" is not a rate; write one, like `rate_limit 100/1m`; or if a zone is meant, `zone often { … }`",
		"zone api":                            "`zone api { … }` with its limit into the block",
		"zone":                                "`zone zone { … }`",
		"key {remote_host}":                   "key is an option, and the rate comes first; write `rate_limit 100/1m`, and in a block after it, on a line of its own, `key {client_ip}`",
		"{remote.host_prefix.24} 10r/s 16000": "write `rate_limit 10/s`, and in a block after it, on lines of their own, `key {remote_host}`, `ipv4_prefix 24`, `max_keys 16000`",
		"{remote.ip_prefix.64} 10r/s":         "`key {client_ip}`, `ipv6_prefix 64`",
		"{remote.port} 10r/s":                 "new with each connection, so it limits nobody; write `rate_limit 10/s`, which",
		"@auth {remote.ip_prefix.64} 10r/s":   "write `rate_limit @auth 10/s`, and",
		"/api {remote.port} 10r/s":            "write `rate_limit /api 10/s`, which",
		"100/1m":                              "",
		"{open":                               "",
		"{args[0]}":                           "the import gives too few",
		"{env.RATE}":                          "filled in too late",
		"{remote.ip} 10r/s 16000 429":         "write `rate_limit 10/s`, and in a block after it, on lines of their own, `key {client_ip}`, `max_keys 16000`, `status 429`",
		"{remote.host} often":                 "write `rate_limit 100/1m`, and in a block after it, on lines of their own, `key {remote_host}`",
		"{http.request.header.X-User}":        "`key {http.request.header.X-User}`",
	} {
		matcher, values := "", strings.Fields(line)
		if strings.ContainsAny(values[0][:1], "@/") {
			matcher, values = values[0], values[1:]
		}
		err := NoRateFirst(matcher, values)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("NoRateFirst(%s) = %v, want %s", line, err, want)
		}
	}
}

func TestNumberMissing(t *testing.T) {
	for _, c := range []struct {
		word  string
		alone bool
		want  bool
	}{
		{"/1m", false, true}, {"/1m", true, true}, {"/s", false, true}, {"/s", true, false}, {"/login", false, false}, {"100/1m", true, false}, {"@api", false, false},
	} {
		if err := NumberMissing(c.word, c.alone); (err != nil) != c.want {
			t.Errorf("NumberMissing(%q, %t) = %v, want an error %t", c.word, c.alone, err, c.want)
		}
	}
}

func TestJSON(t *testing.T) {
	shapes := map[reflect.Type]string{reflect.TypeFor[int](): "write a number"}
	for text, want := range map[string]string{
		`{"n": 1}`: "", `{"n": "x"}`: "; write a number", `{"s": 1}`: "", `{"events": 1}`: "; write max_events", `{"other": 1}`: "",
	} {
		var v struct {
			N int
			S string
		}
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.DisallowUnknownFields()
		err := decoder.Decode(&v)
		hinted := ExplainJSON(err, shapes)
		if (err == nil) != (hinted == nil) || err != nil && hinted.Error() != err.Error()+want {
			t.Errorf("JSON of %s = %v, want %v%s", text, hinted, err, want)
		}
	}
}
