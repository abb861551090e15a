// no clock: configurations are adapted, and nothing runs.

package behaviour_test

import (
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// mistyped are lines with a slip in a word of a closed list, by the block that they stand in, and
// what their error says to write.
var mistyped = map[string]map[string]string{
	"zone": {
		"sync_rate strikt":              "did you mean strict?",
		"sync_rate Lokal":               "did you mean local?",
		"sync_rate 1sec":                "did you mean 1s?",
		"algorithm TOKEN_BUKET":         "did you mean token_bucket?",
		"on_redis_loss alow":            "did you mean allow?",
		"empty_key SKIP":                "did you mean skip?",
		"headers githb":                 "did you mean github?",
		"enforce of":                    "did you mean off?",
		"enforce on":                    "did you mean 100%?",
		"enforce half":                  "write it like 25% or 0.25",
		"early_sync of":                 "did you mean off?",
		"early_sync false":              "did you mean off?",
		"regions OFF":                   "did you mean off?",
		"count_denied yes":              "did you mean on?",
		"count_denied maybe":            "write one of on, off",
		"count_responses 4XX":           "did you mean 4xx?",
		"count_responses 4x":            "did you mean 4xx?",
		"ban 15":                        "\"15\" has no unit; write 15m for minutes, or use s, h or d",
		"ban 15min":                     "did you mean 15m?",
		"ban 15m aftr 3/10m":            "did you mean after?",
		"ban 15m after 3/10m growng 1d": "did you mean growing?",
		"ban 15m growing 1d growing 2d": "growing is here twice",
		"ban 15m growing 15m":           "it can't grow from 15m up to 15m",
		"ban 15m growing 7":             "has no unit; write 7m for minutes",
		"ban 15m for 1d":                "write after or growing",
		"cost byte":                     "did you mean bytes?",
		"cost Bytes":                    "did you mean bytes?",
		"cost bytes*2":                  "like `cost bytes * 0.25`",
		"response_cost byte":            "did you mean bytes?",
		"response_cost headers X-Cost":  "did you mean header?",
		"response_cost jsn usage.total": "did you mean json?",
		"response_cost json":            "like `response_cost header X-Cost`",
		"except private_range":          "did you mean private_ranges?",
	},
	"handler": {
		"sync_rate strikt":    "did you mean strict?",
		"log_key of":          "did you mean off?",
		"disable_metrics yes": "did you mean on?",
		"headers Iettf":       "did you mean ietf?",
	},
	"global": {
		"sync_rate strikt":           "did you mean strict?",
		"redis OFF":                  "did you mean off?",
		"redis {\n tls_enabled of }": "did you mean off?",
		"persist storge":             "did you mean storage?",
		"persist storage2":           "A file of that name is ./storage2",
		"quiet tide024":              "did you mean TIDE024?",
		"regions {\nhere eu\nregion eu redis://a\nregion us redis://b\non_loss divde }": "did you mean divide?",
	},
}

func TestMistypedWords(t *testing.T) {
	blocks := map[string]string{
		"zone":    ":80 {\nrate_limit {\nzone a {\nlimit 10/1m\n%s\n}\n}\n}",
		"handler": ":80 {\nrate_limit 10/1m {\n\n\n%s\n}\n}",
		"global":  "{\nrate_limit {\n\n\n%s\n}\n}",
	}
	for block, lines := range mistyped {
		for line, want := range lines {
			text, err := sitetest.Adapt(strings.Replace(blocks[block], "%s", strings.ReplaceAll(line, " }", "\n}"), 1))
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s in %s: Adapt = %s, %v, want %q", line, block, text, err, want)
				continue
			}
			if !strings.Contains(err.Error(), "at Caddyfile:") {
				t.Errorf("%s in %s: %v: no file and line", line, block, err)
			}
		}
	}
}
