package ratelimit

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

const twinFile = "testdata/cost_twins.txt"

// Where each request costs one unit, all is as it was before there were costs: testdata/cost_twins
// is what the commit before them has answered, and left in Redis, in each algorithm and mode. A
// `cost 1` is no cost. Instants, waits and the names of nodes differ each time, so numbers from
// 1,000 on are not compared; the version of the schema has changed, and is not compared.
func TestTwinsOfBeforeCosts(t *testing.T) {
	var got strings.Builder
	for _, options := range twinOptions {
		for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra", "leaky_bucket\nqueue 4"} {
			for _, rate := range []string{"local", "100ms", "strict"} {
				text := twinOf(t, algorithm, rate, options)
				if options == "" {
					got.WriteString(text)
				} else if !strings.Contains(got.String(), text) {
					t.Errorf("with %q it is\n%s", options, text)
				}
			}
		}
	}
	if os.Getenv("UPDATE_GOLDENS") != "" {
		if err := os.WriteFile(twinFile, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(twinFile)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got.String(), want)
	}
}

// twinOf is what requests to a zone are answered, and what Redis has of them.
func twinOf(t *testing.T, algorithm, rate, options string) string {
	server := redistest.Start(t)
	s := newSite(t, appWith(server), "headers draft kong\n"+zoneBlock("twins", "key {http.request.header.K}\nlimit 5/80000h\nalgorithm "+algorithm+"\nsync_rate "+rate+options)+
		zoneBlock("small", "match header Small *\nkey {http.request.header.K}\nlimit 1/80000h\nsync_rate "+rate+options))
	defer s.end()
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", strings.ReplaceAll(algorithm, "\n", " "), rate)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for i, key := range []string{"a", "a", "b", "a", "a", "a", "a", "a", "b"} {
		change := []func(*http.Request){header("K", key)}
		if i == 2 || i == 8 {
			change = append(change, header("Small", "yes")) // which denies the second
		}
		if strings.HasPrefix(algorithm, "leaky") && i > 0 && i != 2 {
			change = append(change, func(r *http.Request) { *r = *r.WithContext(gone) })
		}
		a := s.get("192.0.2.1", change...)
		fmt.Fprintf(&b, "%s: %d %v %s\n", key, a.status, a.err, twinText(a.body))
		for _, name := range []string{"Ratelimit-Policy", "Ratelimit", "Retry-After", "Ratelimit-Limit", "Ratelimit-Remaining"} {
			if value := a.header.Values(name); len(value) > 0 {
				fmt.Fprintf(&b, "\t%s: %s\n", name, twinText(strings.Join(value, ", ")))
			}
		}
	}
	if rate == "100ms" {
		for _, zone := range []string{"twins", "small"} {
			shows(t, zone, "has sent all", func(z operate.LimitState) bool { return z.Unsent == 0 && z.Sync != nil && z.Sync.Cycles > 1 })
		}
	}
	b.WriteString(twinOfRedis(server))
	return b.String()
}

var (
	twinNumber = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)
	twinNode   = regexp.MustCompile(`^[0-9A-Za-z_-]{8,}$`)
)

// twinText has N for numbers from 1,000 on, and fractions of two digits.
func twinText(text string) string {
	return twinNumber.ReplaceAllStringFunc(text, func(number string) string {
		n, err := strconv.ParseFloat(number, 64)
		switch {
		case err != nil || n >= 1000:
			return "N"
		case strings.Contains(number, "."):
			return strconv.FormatFloat(n, 'f', 2, 64)
		}
		return number
	})
}

// twinOfRedis is what Redis has of counts.
func twinOfRedis(server *redistest.Server) string {
	var lines []string
	for _, key := range server.Do("KEYS", "*").([]any) {
		name := key.(string)
		if !strings.Contains(name, ":twins") && !strings.Contains(name, ":small") {
			continue
		}
		_, line, _ := strings.Cut(name, "}") // after the version of the schema
		line = twinText(line) + " "
		switch server.Do("TYPE", name) {
		case "hash":
			all := server.Do("HGETALL", name).(map[any]any)
			var fields []string
			for f, v := range all {
				field, value := f.(string), v.(string)
				if field == "at" { // when a log has grown, which Redis did not have then
					continue
				}
				if field != "sum" && twinNode.MatchString(field) {
					field = "node"
					_, rest, _ := strings.Cut(value, " ")
					value = "seq " + rest
				}
				fields = append(fields, fmt.Sprintf("%s=%q", field, twinText(value)))
			}
			slices.Sort(fields)
			if slices.Equal(fields, []string{`node="seq 0 0"`, `sum="0 0"`}) {
				continue // the epoch before, sent with a refund of what Redis had already
			}
			line += strings.Join(fields, " ")
		case "string":
			line += fmt.Sprintf("%q", twinText(server.Do("GET", name).(string)))
		case "zset":
			line += fmt.Sprint(len(server.Do("ZRANGE", name, 0, -1).([]any)), " members")
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n\n"
}

var twinOptions = []string{"", "\ncost 1"}
