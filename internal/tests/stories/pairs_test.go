// bubble: all of a story runs in one.

package stories

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// pairValues are options of a zone in JSON, and what they bring along.
var pairValues = map[string]string{
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

// What loads together is together in scenarios. Left out are options of several regions, which have
// schedules of their own, and the older plugin's words, which become others at load.
func TestScenariosHaveEachPairOfOptions(t *testing.T) {
	made := map[string]bool{}
	s := &scenario{random: rand.New(rand.NewPCG(1, 1)), withRedis: true}
	for range 20_000 {
		has := optionsOf(s.makeZone())
		for _, a := range has {
			for _, b := range has {
				made[a+" with "+b] = true
			}
		}
	}
	all := maps.Clone(pairValues)
	for _, a := range algorithmsInPairs {
		all["algorithm "+a] = fmt.Sprintf(`"algorithm": %q`, a)
	}
	var missing []string
	for a := range all {
		for b := range all {
			one, _, _ := strings.Cut(a, " ")
			if other, _, _ := strings.Cut(b, " "); one < other && !made[a+" with "+b] && loadsTogether(t, all[a], all[b]) {
				missing = append(missing, a+" with "+b)
			}
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		t.Errorf("these load together, and no scenario has them:\n%s", strings.Join(missing, "\n"))
	}
}

var algorithmsInPairs = []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra", "leaky_bucket"}

// optionsOf names what a zone of a scenario has as pairValues does.
func optionsOf(z zone) (all []string) {
	for name, v := range z {
		switch name {
		case "algorithm":
			all = append(all, fmt.Sprint("algorithm ", v))
		case "sync_rate":
			if v != "strict" && v != "local" {
				v = "1s"
			}
			all = append(all, fmt.Sprint("sync_rate ", v))
		case "limits":
			if strings.Contains(jsonOf(v), "{http.request") {
				all = append(all, "limits from requests")
			}
		default:
			all = append(all, name)
		}
	}
	return all
}

// loadsTogether reports whether a zone loads with two options, by some algorithm.
func loadsTogether(t *testing.T, a, b string) bool {
	for _, algorithm := range algorithmsInPairs {
		zone := map[string]any{"limits": json.RawMessage(`[{"max_events": 2, "window": "1h"}]`), "key": "{http.request.header.K}", "algorithm": algorithm}
		for _, text := range []string{a, b} {
			if err := json.Unmarshal([]byte("{"+text+"}"), &zone); err != nil {
				t.Fatal(err)
			}
		}
		c, err := provision(`{"redis": {"url": "redis://localhost:1"}}`, []string{jsonOf(map[string]any{"rate_limits": map[string]any{"z": zone}})})
		if err == nil {
			c.cancel()
			return true
		}
	}
	return false
}
