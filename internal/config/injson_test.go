package config

import (
	"encoding/json"
	"testing"
)

// What an error says to write is said in JSON, and is JSON.
func TestInJSON(t *testing.T) {
	for line, want := range map[string]string{
		"limit 100/1m":             `"limits": [{"max_events": 100, "window": "1m"}]`,
		"limit {plan}/1m":          `"limits": [{"max_events": "{plan}", "window": "1m"}]`,
		"limit 10/s":               `"limits": [{"max_events": 10, "window": "1s"}]`,
		"limit_default 60/1m":      `"default": 60`,
		"events 100":               `"max_events": 100`,
		"window 1m":                `"window": "1m"`,
		"queue 10":                 `"queue": 10`,
		"algorithm leaky_bucket":   `"algorithm": "leaky_bucket"`,
		"sync_rate local":          `"sync_rate": "local"`,
		"key {client_ip}":          `"key": "{client_ip}"`,
		"enforce off":              `"enforce": 0`,
		"ban 15m":                  `"ban": {"for": "15m"}`,
		"ban 15m after 3/10m":      `"ban": {"for": "15m", "after": {"max_events": 3, "window": "10m"}}`,
		"after 3/10m":              `"after": {"max_events": 3, "window": "10m"}`,
		"count_responses 401 403":  `"count_responses": {"status_code": [401, 403]}`,
		"count_responses 4xx":      `"count_responses": {"status_code": [4]}`,
		"reserve @paying 20%":      `"reserve": [{"share": 0.2, "match": [{"header": {"X-Plan": ["paid"]}}]}]`,
		"path /health":             `"path": ["/health"]`,
		"client_ip 203.0.113.0/24": `"client_ip": {"ranges": ["203.0.113.0/24"]}`,
	} {
		if got := InJSON("add `" + line + "`, or not"); got != "add `"+want+"`, or not" {
			t.Errorf("InJSON of `%s` = %s, want %s", line, got, want)
		}
		if !json.Valid([]byte("{" + want + "}")) {
			t.Errorf("%s is no JSON", want)
		}
	}
	for text, want := range map[string]string{
		"nothing to write":    "nothing to write",
		"with `match` in it":  "with `match` in it",
		"`respond ok` is new": "`respond ok` is new",
		"write how long, like `ban 15m`, in JSON `\"for\": \"15m\"`": "write how long, like `\"for\": \"15m\"`",
		"it needs Redis; " + RedisMend + ", or remove it":            "it needs Redis; add `\"redis\": {\"url\": \"redis://localhost:6379\"}` to apps.rate_limit, or remove it",
	} {
		if got := InJSON(text); got != want {
			t.Errorf("InJSON(%s) = %s, want %s", text, got, want)
		}
	}
}
