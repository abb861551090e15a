package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

func init() { operator, between = func() string { return "" }, 0 }

// noon is the time of the goldens.
var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// golden compares what was printed with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if redistest.UpdateGoldens {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: printed\n%s\nwant\n%s", name, got, want)
	}
	for _, r := range got {
		if r < ' ' && r != '\n' || r == '\u202e' {
			t.Errorf("%s: %q is printed raw", name, r)
		}
	}
}

// stored is what a file of JSON has.
func stored[T any](t *testing.T, path string) (v T) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestStatusIsPrinted(t *testing.T) {
	inputs, err := filepath.Glob("testdata/status*.json")
	if err != nil || len(inputs) < 3 {
		t.Fatalf("%d states to print, %v", len(inputs), err)
	}
	for _, path := range inputs {
		var b bytes.Buffer
		if err := (printer{out: &b, now: func() time.Time { return noon }}).status(stored[operate.State](t, path), &decisions{map[string]operate.Decided{}, noon.Add(-2 * time.Second)}); err != nil {
			t.Fatal(err)
		}
		golden(t, strings.TrimSuffix(filepath.Base(path), ".json")+".golden", b.String())
	}
}

// endpoint answers one request as an admin endpoint would, and notes it.
func endpoint(t *testing.T, status int, text string) (c client, asked *string) {
	t.Helper()
	asked = new(string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body)
		*asked = r.Method + " " + r.RequestURI + " " + body.String()
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(s.Close)
	address := strings.TrimPrefix(s.URL, "http://")
	return client{address: func() (string, error) { return address, nil }, timeout: 10 * time.Second}, asked
}

func TestChangesArePrinted(t *testing.T) {
	key, id := "203.0.113.9", "2ca8bc42"
	share := 0.25
	for name, test := range map[string]struct {
		change change
		answer string
	}{
		"override":          {change{ChangeRequest: operate.ChangeRequest{Zone: "api", Key: &key, Limit: "6000/1m"}, name: key}, `{"zone":"api","limit":"6000/1m","until":"2026-05-05T12:00:00Z","nodes":3,"applied":3,"shared":true}`},
		"override_noted":    {change{ChangeRequest: operate.ChangeRequest{Zone: "api", Key: &key, Limit: "9000/1m"}, name: key}, `{"zone":"api","limit":"9000/1m","note":"ticket 4711","until":"2026-05-05T12:00:00Z","nodes":3,"applied":3,"shared":true}`},
		"override_banned":   {change{ChangeRequest: operate.ChangeRequest{Zone: "api", Key: &key, Limit: "unlimited"}, name: key}, `{"zone":"api","limit":"unlimited","until":"2026-05-05T12:00:00Z","banned_until":"2026-05-04T12:15:00Z","nodes":3,"applied":3,"shared":true}`},
		"override_id":       {change{ChangeRequest: operate.ChangeRequest{Zone: "api", Key: &id, Limit: "unlimited"}, name: id}, `{"zone":"api","limit":"unlimited","until":"2026-05-05T12:00:00Z","nodes":3,"applied":3,"shared":true}`},
		"override_by_id":    {change{ChangeRequest: operate.ChangeRequest{Zone: "api", ID: id, Limit: "unlimited"}, byID: true, name: id}, `{"zone":"api","limit":"unlimited","until":"2026-05-05T12:00:00Z","nodes":3,"applied":3,"shared":true}`},
		"override_forever":  {change{ChangeRequest: operate.ChangeRequest{Zone: "api", Key: &key, Limit: "deny"}, name: key}, `{"zone":"api","limit":"deny","until":"2036-05-01T12:00:00Z","nodes":3,"applied":3,"shared":true}`},
		"override_removed":  {change{ChangeRequest: operate.ChangeRequest{Zone: "api", Key: &key}, name: key, remove: true}, `{"zone":"api","removed":true,"nodes":3,"applied":3,"shared":true}`},
		"override_covering": {change{ChangeRequest: operate.ChangeRequest{Zone: "api", Key: &key, Limit: "9000/1m"}, name: key}, `{"zone":"api","limit":"9000/1m","temporary":true,"until":"2026-05-04T13:00:00Z","holds":[{"zone":"api","limit":"9000/1m","temporary":true,"until":"2026-05-04T13:00:00Z"},{"zone":"api","limit":"6000/1m 90000/1h","covered":true,"until":"2036-05-01T12:00:00Z"}],"nodes":3,"applied":3,"shared":true}`},
		"override_covered":  {change{ChangeRequest: operate.ChangeRequest{Zone: "api", Key: &key, Limit: "6000/1m"}, name: key}, `{"zone":"api","limit":"6000/1m","covered":true,"until":"2036-05-01T12:00:00Z","holds":[{"zone":"api","limit":"9000/1m","temporary":true,"until":"2026-05-04T13:00:00Z"},{"zone":"api","limit":"6000/1m","covered":true,"until":"2036-05-01T12:00:00Z"}],"nodes":3,"applied":3,"shared":true}`},
		"override_uncovers": {change{ChangeRequest: operate.ChangeRequest{Zone: "api", Key: &key}, name: key, remove: true}, `{"zone":"api","removed":true,"holds":[{"zone":"api","limit":"6000/1m","until":"2036-05-01T12:00:00Z"}],"nodes":3,"applied":3,"shared":true}`},
		"override_later":    {change{ChangeRequest: operate.ChangeRequest{Zone: "api", Key: &key, Limit: "6000/1m"}, name: key}, `{"zone":"api","limit":"6000/1m","later":[{"zone":"api","limit":"100/1m","by":"bob@web2","until":"2026-05-04T13:00:00Z"}],"nodes":3,"applied":3,"shared":true}`},
		"override_gone":     {change{ChangeRequest: operate.ChangeRequest{Zone: "api", Key: &key, Limit: "6000/1m"}, name: key}, `{"zone":"api","limit":"6000/1m","later":[{"zone":"api"}],"nodes":3,"applied":3,"shared":true}`},
		"enforce_uncovers":  {change{ChangeRequest: operate.ChangeRequest{Zone: "api"}, remove: true}, `{"zone":"api","removed":true,"holds":[{"zone":"api","share":1,"until":"2036-05-01T12:00:00Z"}],"nodes":3,"applied":3,"shared":true}`},
		"enforce_unsaved":   {change{ChangeRequest: operate.ChangeRequest{Zone: "api", Share: &share}}, `{"zone":"api","share":0.25,"until":"2036-05-01T12:00:00Z","nodes":1,"applied":1,"ends_with_process":true}`},
		"enforce":           {change{ChangeRequest: operate.ChangeRequest{Zone: "api", Share: &share}}, `{"zone":"api","share":0.25,"until":"2026-05-04T13:00:00Z","nodes":1,"applied":1,"shared":false}`},
		"enforce_after_all": {change{ChangeRequest: operate.ChangeRequest{Zone: "api", Share: &share}}, `{"zone":"api","share":1,"until":"2036-05-01T12:00:00Z","all_zones":{"all":true,"share":0,"until":"2026-05-04T12:15:00Z"},"nodes":2,"applied":2,"shared":true}`},
		"enforce_all":       {change{ChangeRequest: operate.ChangeRequest{All: true, Share: &share}}, `{"all":true,"share":0,"until":"2026-05-04T12:15:00Z","nodes":3,"applied":3,"shared":true}`},
		"enforce_removed":   {change{ChangeRequest: operate.ChangeRequest{All: true}, remove: true}, `{"all":true,"removed":true,"nodes":2,"applied":2,"shared":true}`},
		"missing":           {change{ChangeRequest: operate.ChangeRequest{All: true, Share: &share}}, `{"all":true,"share":0,"until":"2026-05-04T12:15:00Z","nodes":3,"applied":1,"shared":true,"missing":[{"name":"web2/7","heard":"2026-05-04T11:59:53Z"},{"name":"web\u001b[31m3/8","heard":"2026-05-04T11:59:59Z"}]}`},
		"pending":           {change{ChangeRequest: operate.ChangeRequest{All: true, Share: &share}}, `{"all":true,"share":0,"until":"2026-05-04T12:15:00Z","nodes":1,"applied":1,"shared":true,"pending":true}`},
	} {
		path := operate.OverridesPath
		if test.change.Key == nil && test.change.ID == "" {
			path = operate.EnforcementPath
		}
		c, _ := endpoint(t, http.StatusOK, test.answer)
		var b bytes.Buffer
		err := printer{out: &b, now: func() time.Time { return noon }}.change(c, path, test.change)
		if inPart := name == "missing" || name == "pending"; errors.Is(err, errInPart) != inPart || err != nil && !inPart {
			t.Errorf("%s: error %v", name, err)
		}
		if err != nil {
			b.WriteString("error: " + clean(err).Error() + "\n")
		}
		golden(t, "change_"+name+".golden", b.String())
	}
}

// execute runs a command as the shell would.
func execute(t *testing.T, c client, args ...string) (out string, err error) {
	t.Helper()
	address, err := c.address()
	if err != nil {
		t.Fatal(err)
	}
	return executeRaw(slices.Concat([]string{"rate-limit"}, args, []string{"--address", address}))
}

func executeRaw(args []string) (out string, err error) {
	cmd, limit := &cobra.Command{Use: "caddy", SilenceUsage: true, SilenceErrors: true}, &cobra.Command{Use: "rate-limit"}
	RateLimit().CobraFunc(limit)
	cmd.AddCommand(limit)
	var b, failed bytes.Buffer
	cmd.SetOut(&b)
	cmd.SetErr(&failed)
	cmd.SetArgs(args)
	if err = cmd.Execute(); err != nil && failed.Len() > 0 {
		text, ok := strings.CutPrefix(failed.String(), "Error: ")
		if !ok || strings.Count(text, "\n") != 1 {
			return b.String(), fmt.Errorf("it writes no line of an error, but %q", failed.String())
		}
		err = errors.New(strings.TrimSuffix(text, "\n"))
	}
	return b.String(), err
}

func TestWhatCommandsAsk(t *testing.T) {
	const done = `{"nodes":1,"applied":1}`
	c, asked := endpoint(t, http.StatusOK, "{}")
	if out, err := execute(t, c, "status"); err != nil || *asked != "GET /rate_limit/ " || !strings.Contains(out, "No configuration") {
		t.Errorf("status asks %s (%v) and prints %s", *asked, err, out)
	}
	for line, want := range map[string]string{
		"override api 203.0.113.9 6000/1m --for 24h --note why": `POST /rate_limit/overrides {"zone":"api","key":"203.0.113.9","limit":"6000/1m","for":"24h","note":"why"}`,
		"override api AAAAAAAAAAAAAAAAAAAAAA deny --id":         `POST /rate_limit/overrides {"zone":"api","id":"AAAAAAAAAAAAAAAAAAAAAA","limit":"deny"}`,
		"ban login 203.0.113.9 --for 1d":                        `POST /rate_limit/overrides {"zone":"login","key":"203.0.113.9","limit":"deny","for":"1d"}`,
		"ban login 203.0.113.9 --remove":                        `DELETE /rate_limit/overrides {"zone":"login","key":"203.0.113.9"}`,
		"override api 203.0.113.9 --remove":                     `DELETE /rate_limit/overrides {"zone":"api","key":"203.0.113.9"}`,
		"reset login 203.0.113.9":                               `POST /rate_limit/reset {"zone":"login","key":"203.0.113.9"}`,
		"reset login --all":                                     `POST /rate_limit/reset {"zone":"login","all":true}`,
		"enforce api on":                                        `POST /rate_limit/enforcement {"zone":"api","share":1}`,
		"reset login 2ca8bc42 --id":                             `POST /rate_limit/reset {"zone":"login","id":"2ca8bc42"}`,
		"enforce api 25%":                                       `POST /rate_limit/enforcement {"zone":"api","share":0.25}`,
		"enforce api off --for 1h":                              `POST /rate_limit/enforcement {"zone":"api","share":0,"for":"1h"}`,
		"enforce --all off":                                     `POST /rate_limit/enforcement {"all":true,"share":0}`,
		"enforce --all --remove":                                `DELETE /rate_limit/enforcement {"all":true}`,
	} {
		c, asked := endpoint(t, http.StatusOK, done)
		if out, err := execute(t, c, strings.Fields(line)...); err != nil || *asked != want {
			t.Errorf("%s asks %s (%v), want %s; it prints %s", line, *asked, err, want, out)
		}
	}
	c, asked = endpoint(t, http.StatusOK, `{"zone":"api","limit":"9/1m","nodes":1,"applied":1,"shared":true}`)
	if out, err := execute(t, c, "override", "api", "", "9/1m"); err != nil || *asked != `POST /rate_limit/overrides {"zone":"api","key":"","limit":"9/1m"}` || !strings.Contains(out, "api       \"\"   9/1m") {
		t.Errorf("override of the empty key asks %s (%v) and prints %s", *asked, err, out)
	}
	c, _ = endpoint(t, http.StatusOK, `{"nodes":1,"applied":1,"note":"<b>"}`)
	if out, err := execute(t, c, "enforce", "api", "off", "--json"); err != nil || out != "{\n  \"nodes\": 1,\n  \"applied\": 1,\n  \"note\": \"<b>\"\n}\n" {
		t.Errorf("with --json it prints %q, %v", out, err)
	}
}

func TestCommandsThatFail(t *testing.T) {
	for line, want := range map[string]string{
		"statsu":                      "did you mean status?",
		"reload":                      "there are ban, bans, enforce, explain, nodes, override, overrides, reset, simulate, status, top, version",
		"status api":                  "it takes no arguments; see 'caddy rate-limit status --help'",
		"reset login":                 "--all",
		"reset login k --all":         "--all",
		"override api":                "give a zone, a key and a limit",
		"override api 203.0.113.9":    "--remove",
		"override api k 5 --remove":   "--remove",
		"enforce api":                 "--remove",
		"enforce":                     "--all",
		"enforce api half":            "not a share",
		"enforce api 101%":            "not between",
		"enforce api off --all":       "--all",
		"enforce api off --all extra": "at most 2",
		"enforce --all off --remove":  "--remove",
	} {
		c, asked := endpoint(t, http.StatusOK, "{}")
		if out, err := execute(t, c, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) || *asked != "" {
			t.Errorf("%s: %v, want %s; it asks %q and prints %s", line, err, want, *asked, out)
		}
	}
	c, _ := endpoint(t, http.StatusNotFound, `{"error":"there is no zone \u001b \"apu\"`+"\x1b[31m"+`"}`)
	_, err := execute(t, c, "enforce", "apu", "off")
	if err == nil || !strings.Contains(err.Error(), "there is no zone") || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("what the endpoint answers comes out as %v", err)
	}
	c, _ = endpoint(t, http.StatusOK, "no json")
	if _, err := execute(t, c, "status"); err == nil || !strings.Contains(err.Error(), "not that of a site") {
		t.Errorf("nonsense comes out as %v", err)
	}
}

// An endpoint that doesn't answer is waited for no longer than --timeout.
func TestTimeout(t *testing.T) {
	stop := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stop }))
	defer s.Close()
	defer close(stop)
	address := strings.TrimPrefix(s.URL, "http://")
	_, err := execute(t, client{address: func() (string, error) { return address, nil }}, "status", "--timeout", "20ms")
	if err == nil || !strings.Contains(err.Error(), "has not answered within 20ms") {
		t.Errorf("status of an endpoint that doesn't answer: %v", err)
	}
}

// The admin endpoint may be a unix socket.
func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) })}
	go s.Serve(l)
	defer s.Close()
	out, err := execute(t, client{address: func() (string, error) { return "unix/" + path, nil }}, "status")
	if err != nil || !strings.Contains(out, "No configuration") {
		t.Errorf("status over a unix socket prints %s, %v", out, err)
	}
}

// Each command has a help text with an example.
func TestHelp(t *testing.T) {
	for _, c := range commands {
		cmd := c()
		if cmd.Short == "" || cmd.Long == "" || !strings.Contains(cmd.Example, "caddy rate-limit "+cmd.Name()) {
			t.Errorf("%s has no help text with an example", cmd.Name())
		}
		help, err := executeRaw([]string{"rate-limit", cmd.Name(), "--help"})
		for line := range strings.SplitSeq(help, "\n") {
			if len(line) > 80 && !strings.Contains(line, "https://") {
				t.Errorf("%s has a line of %d columns: %s", cmd.Name(), len(line), line)
			}
		}
		if !strings.Contains(help, "Flags:") || err != nil {
			t.Errorf("the help of %s is %s, %v", cmd.Name(), help, err)
		}
	}
}

func TestTimesAhead(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	p := printer{now: func() time.Time { return now }}
	for ahead, want := range map[time.Duration]string{
		300*time.Second - 600*time.Millisecond: "in 5m",
		300 * time.Second:                      "in 5m",
		299 * time.Second:                      "in 4m59s",
		595 * time.Second:                      "in 9m55s",
		125 * time.Minute:                      "in 2h5m",
		49*time.Hour + 3*time.Second:           "in 2d1h",
		time.Hour - 300*time.Millisecond:       "in 1h",
		-time.Second:                           "in 0s",
	} {
		if got := p.in(now.Add(ahead)); got != want {
			t.Errorf("%s ahead is %q, want %q", ahead, got, want)
		}
	}
}

// Slow rates have a decimal, or two denials in three seconds would be none or one a second.
func TestRates(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	p := printer{now: func() time.Time { return now }}
	for denied, want := range map[float64]string{0: "0", 1: "0.4", 5: "2.0", 24: "9.6", 24.95: "10", 100: "40"} {
		s := operate.State{Decisions: map[string]operate.Decided{"a": {Denied: denied}}}
		got := p.zone(s, operate.LimitState{Zone: "a"}, &decisions{nil, now.Add(-2500 * time.Millisecond)})[2]
		if got != want {
			t.Errorf("%g denied in 2.5 s are %q a second, want %q", denied, got, want)
		}
	}
}

// In a terminal of 80 columns no line is longer, unless a single cell is; nothing is lost; a table
// that fits is as it is without a terminal.
func TestTablesFitTheTerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching("[a-z0-9/]{0,12}")
		columns := rapid.IntRange(1, 14).Draw(t, "columns")
		prose := rapid.StringMatching("([a-z]{1,9} ){0,20}")
		var rows [][]string
		for i := range rapid.IntRange(2, 5).Draw(t, "rows") {
			row := []string{fmt.Sprint("row", i)}
			for c := range columns {
				cell := word.Draw(t, "cell")
				if c == columns-1 && rapid.Bool().Draw(t, "prose") {
					cell = strings.TrimSpace(prose.Draw(t, "prose"))
				}
				if i == 0 {
					cell = fmt.Sprint("HEAD", c)
				}
				row = append(row, cell)
			}
			rows = append(rows, row)
		}
		free, fitted := page{}, page{width: 80}
		free.table(rows)
		fitted.table(rows)
		for line := range strings.Lines(fitted.String()) {
			if len(strings.TrimRight(line, "\n")) > 80 && len(strings.Fields(line)) > 2 {
				t.Errorf("a line of %d columns: %s", len(line), line)
			}
		}
		all := strings.Join(strings.Fields(fitted.String()), " ")
		for _, row := range rows[1:] {
			for _, cell := range row[1:] {
				for _, word := range strings.Fields(cell) {
					if !strings.Contains(all, word) {
						t.Errorf("%q is lost in\n%s", word, fitted.String())
					}
				}
			}
		}
		widest := 0
		for line := range strings.Lines(free.String()) {
			widest = max(widest, len(line)-1)
		}
		if widest <= 80 && fitted.String() != free.String() {
			t.Errorf("it fits, and is\n%s, not\n%s", fitted.String(), free.String())
		}
	})
}

// A state of a node on a terminal of 80 columns.
func TestStatusOnATerminal(t *testing.T) {
	var b bytes.Buffer
	p := printer{out: &b, now: func() time.Time { return noon }, width: 80}
	if err := p.status(stored[operate.State](t, "testdata/status_shared.json"), nil); err != nil {
		t.Fatal(err)
	}
	golden(t, "status_80_columns.golden", b.String())
}

// Who asks where no admin endpoint is reads what to do.
func TestWithoutAnEndpoint(t *testing.T) {
	nobody := "127.0.0.1:" + strconv.Itoa(redistest.FreePort(t))
	if _, err := executeRaw([]string{"rate-limit", "status", "--address", nobody}); err == nil || !strings.Contains(err.Error(), "remove `admin off`") {
		t.Errorf("where nobody listens it says: %v", err)
	}
	for status, text := range map[int]string{http.StatusOK: "<html>", http.StatusNotFound: ""} {
		c, _ := endpoint(t, status, text)
		if _, err := execute(t, c, "status"); err == nil || !strings.Contains(err.Error(), "not that of a site") {
			t.Errorf("where a site answers with %d it says: %v", status, err)
		}
	}
}

// With --json what could drive a terminal is escaped, and what is told is the same.
func TestJSONDrivesNoTerminal(t *testing.T) {
	var b bytes.Buffer
	told := map[string]string{"path": "/a\u009b31m\u202e\x7f\x1b\U000e0001\n\t ü 界 \u2028"}
	if err := (printer{out: &b}).value(told); err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal(b.Bytes(), &got); err != nil || !maps.Equal(got, told) {
		t.Errorf("%s reads as %q, %v, want %q", b.String(), got, err, told)
	}
	for _, r := range b.String() {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%q is printed raw", r)
		}
	}
}
