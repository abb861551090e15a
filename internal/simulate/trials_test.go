// no clock: what is replayed has the time of its log.

package simulate_test

import (
	"cmp"
	"fmt"
	"html"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/simulate"
)

// answered are requests of some clients whose responses differ in all that may decide how much they
// count: status, length, a header, and when they had ended.
func answered(n int) string {
	var log strings.Builder
	rng := rand.New(rand.NewPCG(8, 9))
	at := 0.
	for range n {
		at += rng.ExpFloat64() / 5
		k := int(8 * rng.Float64() * rng.Float64())
		a := asked{at, fmt.Sprintf("203.0.113.%d", k), []string{"/", "/login"}[rng.IntN(2)], "example.com", []int{200, 200, 401, 404, 499, 502}[rng.IntN(6)]}
		line := a.json(fmt.Sprintf(`},"size":%d,"resp_headers":{"X-Cost":["%d"]},"rest":{"a":1`, rng.IntN(300), rng.IntN(9)))
		if rng.IntN(4) == 0 { // the line has the time when it ended
			line = strings.Replace(line, `"duration":0`, fmt.Sprintf(`"duration":%.3f`, 3*rng.Float64()), 1)
		}
		log.WriteString(line)
	}
	return log.String()
}

// What tables say of a limit is what a replay of it alone denies, whatever else decides about a
// request: how its response begins, what it has cost, and for whom a part is reserved. Each number
// of the zone's own limits is among those of the table.
func TestTablesAreTrue(t *testing.T) {
	log := answered(300)
	const counts, ban, reserve = `,"count_responses":{"status_code":[401,404]}`, `,"ban":{"for":"30s"}`, `,"reserve":[{"share":0.5,"match":[{"path":["/login"]}]}]`
	zones := map[string]string{
		"reserve": reserve, "reserve, bucket": reserve + `,"algorithm":"gcra"`, "both": reserve + counts, "held": `,"count_responses":{"status_code":[418]}`,
		"header": `,"cost":[{"units":4}],"response_cost":[{"header":"X-Cost"}]`, "bytes": `,"cost":[{"units":2}],"response_cost":[{"bytes":true,"factor":0.02}]` + counts,
		"share": counts + `,"enforce":0.5`, "ban": counts + ban, "except": counts + `,"except":[{"client_ip":{"ranges":["203.0.113.0/31"]}}]`,
		"match": counts + `,"match":[{"path":["/login"]}]`, "user": counts + `,"key":"{http.auth.user.id}","empty_key":"deny"`, "costs": counts + `,"cost":[{"bytes":true}],"cost_default":3`,
	}
	for name, options := range kinds {
		switch name {
		case "count_denied", "leaky_bucket": // which can't be combined
		case "gcra": // is among the others
		default:
			zones[name] = options + counts
		}
	}
	for name, options := range zones {
		zone := func(limits, options string) simulate.Zone {
			t.Helper()
			text := strings.Replace(string(oneZone(t, 10, options)), `{"max_events":10,"window":"10s"}`, limits, 1)
			return mustRun(t, []byte(text), simulate.Options{}, log).Zones[0]
		}
		z := zone(`{"max_events":10,"window":"10s"},{"max_events":20,"window":"1m"}`, options)
		alone, touched := strings.Replace(options, ban, "", 1), int64(0)
		for _, w := range z.Windows {
			for _, c := range w.Candidates {
				one := zone(fmt.Sprintf(`{"max_events":%d,"window":%q}`, c.Limit, w.Window), alone)
				if name == "user" {
					one.Denied -= one.Requests // of no key, whatever the limit
				}
				if denied := one.Denied + one.WouldDeny; c.Requests != denied || c.Clients != one.DeniedClients {
					t.Errorf("%s: %d in %s is said to deny %d requests of %d clients; alone it denies %d of %d", name, c.Limit, w.Window, c.Requests, c.Clients, denied, one.DeniedClients)
				}
				touched += c.Requests
			}
		}
		if len(z.Windows) != 2 || len(z.Windows[0].Candidates) != 7 || (touched == 0) != (name == "user") {
			t.Errorf("%s: %d requests are denied by %+v", name, touched, z.Windows)
		}
	}
}

// Who guesses passwords and gets nothing but 4xx is no reason for a higher limit, and the next
// lower one is said to deny those who log in at last.
func TestGuessersAreNoReasonForAHigherLimit(t *testing.T) {
	var lines []asked
	for user := range 300 {
		address := fmt.Sprintf("203.0.%d.%d", user/250, user%250+1)
		for wrong := range user % 4 {
			lines = append(lines, asked{float64(wrong), address, "/login", "example.com", 401})
		}
		lines = append(lines, asked{9, address, "/login", "example.com", 302})
	}
	for guesser := range 5 {
		for second := range 50 {
			lines = append(lines, asked{float64(second), fmt.Sprintf("198.51.100.%d", guesser+1), "/login", "example.com", 401})
		}
	}
	slices.SortStableFunc(lines, func(a, b asked) int { return cmp.Compare(a.at, b.at) })
	log := ""
	for _, l := range lines {
		log += l.json("")
	}
	for options, want := range map[string]struct {
		suggested int64
		rule      string
	}{
		`,"count_responses":{"status_code":[401,403]}`: {5, "2/1m would deny requests that had been answered with 3xx: "},
		"": {5, "2/1m would deny requests that had been answered with 3xx: "},
	} {
		config := []byte(strings.Replace(string(oneZone(t, 10, options)), `"10s"`, `"1m"`, 1))
		report := mustRun(t, config, simulate.Options{}, log)
		w := report.Zones[0].Windows[0]
		if w.Suggested != want.suggested || !strings.Contains(w.Rule(), want.rule) {
			t.Errorf("%q: %d is suggested, want %d; %s", options, w.Suggested, want.suggested, w.Rule())
		}
		page, err := report.HTML()
		for _, text := range report.Bias {
			if err != nil || !strings.Contains(html.UnescapeString(string(page)), text) {
				t.Errorf("%q: the page doesn't have %s, %v", options, text, err)
			}
		}
		for _, c := range w.Candidates {
			if c.Limit <= 20 && c.Failing != 5 {
				t.Errorf("%q: of %d clients that %d/1m denies, %d got nothing but 4xx, want 5", options, c.Clients, c.Limit, c.Failing)
			}
		}
	}
}

// A login that only wrong passwords count for is not said to deny those who log in, nor is a limit
// suggested for them; and the most of a client is of what counts.
func TestTablesCountWhatCounts(t *testing.T) {
	log := ""
	for i := range 50 {
		log += asked{float64(i), "203.0.113.1", "/login", "example.com", 200}.json("")
	}
	for i := range 3 {
		log += asked{50 + float64(i), "203.0.113.2", "/login", "example.com", 401}.json("")
	}
	config := []byte(strings.Replace(string(oneZone(t, 5, `,"count_responses":{"status_code":[401,403]}`)), `"10s"`, `"1m"`, 1))
	z := mustRun(t, config, simulate.Options{}, log).Zones[0]
	w := z.Windows[0]
	const nothing = "no response in the log counts by count_responses"
	redirected := strings.NewReplacer(`"status":401`, `"status":302`).Replace(log)
	if text := fmt.Sprint(mustRun(t, config, simulate.Options{}, redirected).Warnings); !strings.Contains(text, nothing) {
		t.Errorf("where wrong passwords are redirected it warns of %s", text)
	}
	if text := fmt.Sprint(mustRun(t, config, simulate.Options{}, log).Warnings); strings.Contains(text, nothing) {
		t.Errorf("where they get 401 it warns of %s", text)
	}
	if z.Denied != 0 || w.Most != (simulate.Quantiles{P50: 0, P90: 3, P99: 3, P999: 3, Max: 3}) || w.Suggested != 5 {
		t.Errorf("%d are denied; %+v", z.Denied, w)
	}
	for _, c := range w.Candidates {
		if want := max(0, 3-c.Limit); c.Requests != want || c.Clients != min(want, 1) {
			t.Errorf("of 3 requests that count %d/1m is said to deny %d of %d clients, want %d", c.Limit, c.Requests, c.Clients, want)
		}
	}
	// Its charts begin above 0, of which there is no logarithm.
	for _, more := range []string{"", asked{60, "203.0.113.3", "/login", "example.com", 401}.json("")} {
		page, err := mustRun(t, config, simulate.Options{}, log, more).HTML()
		if shown := strings.Contains(string(page), "image/svg"); err != nil || !shown {
			t.Errorf("the page has charts: %t, %v", shown, err)
		}
	}
	costs := ""
	for i, answer := range []string{`"size":10,"resp_headers":{"X-Cost":["5"]}`, `"size":30,"resp_headers":{"X-Cost":["70"]}`, `"size":10`} {
		costs += asked{float64(i), "203.0.113.1", "/", "example.com", 200}.json(`},` + answer + `,"rest":{"a":1`)
	}
	for source, want := range map[string]int64{`{"header":"X-Cost"}`: 5 + 70 + 20, `{"bytes":true}`: 10 + 30 + 10} {
		w := mustRun(t, oneZone(t, 100, `,"cost":[{"units":20}],"response_cost":[`+source+`]`), simulate.Options{}, costs).Zones[0].Windows[0]
		if w.Most.Max != want {
			t.Errorf("by %s the most of a client is %d, want %d", source, w.Most.Max, want)
		}
	}
}

// Clients of one network can be told from each other, and the others are shown as before.
func TestClientsOfANetwork(t *testing.T) {
	var log string
	for i := range 30 {
		for k, client := range []string{"203.0.113.66", "203.0.113.67", "198.51.100.7"} {
			log += asked{float64(i) + float64(k)/10, client, "/", "example.com", 200}.json("")
		}
	}
	top := mustRun(t, oneZone(t, 5, ""), simulate.Options{}, log).Zones[0].Top
	told := map[string]bool{}
	for _, one := range top {
		if told[one.Key] = true; strings.HasPrefix(one.Key, "203.0.113.0/24 (key ") == (one.Key == "198.51.100.0/24") || strings.Contains(one.Key, ".6") {
			t.Errorf("a client is shown as %s", one.Key)
		}
	}
	if len(top) != 3 || len(told) != 3 {
		t.Errorf("three clients are shown as %+v", top)
	}
}
