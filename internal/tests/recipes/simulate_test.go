// no clock: what was logged in a bubble is replayed.

package recipes_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/spf13/cobra"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/accesslog"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/command"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/simulate"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

func init() { caddy.RegisterModule(memoryWriter{}) }

// memoryWriter is a log in memory.
type memoryWriter struct{}

var accessLog struct {
	sync.Mutex
	bytes.Buffer
}

func (memoryWriter) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.logging.writers.memory_of_a_test", New: func() caddy.Module { return new(memoryWriter) }}
}

func (memoryWriter) String() string { return "memory" }

func (memoryWriter) WriterKey() string { return "memory" }

func (memoryWriter) OpenWriter() (io.WriteCloser, error) {
	return memoryWriter{}, nil
}

func (memoryWriter) Close() error { return nil }

func (memoryWriter) Write(b []byte) (int, error) {
	accessLog.Lock()
	defer accessLog.Unlock()
	return accessLog.Buffer.Write(b)
}

// simulated is a configuration with a server, as JSON.
func simulated(rateLimit string) string {
	return `{"admin":{"disabled":true},"logging":{"logs":{"default":{"writer":{"output":"memory_of_a_test"},"include":["http.log.access"],
		"encoder":{"format":"json","time_format":"unix_nano","duration_format":"ns"}}}},
	"apps":{"http":{"servers":{"site":{"listen":[":18080"],"automatic_https":{"disable":true},"logs":{},"routes":[
		{"match":[{"host":["example.com"]}],"handle":[{"handler":"subroute","routes":[{"handle":[` + rateLimit + `,{"handler":"static_response","status_code":"{http.request.uri.query.status}"}]}]}]}]}}}}}`
}

// serverOf provisions a configuration and returns its server.
func serverOf(t *testing.T, config string) *caddyhttp.Server {
	t.Helper()
	var c caddy.Config
	if err := caddy.StrictUnmarshalJSON([]byte(config), &c); err != nil {
		t.Fatal(err)
	}
	ctx, err := caddy.ProvisionContext(&c)
	if err != nil {
		t.Fatal(err)
	}
	app, err := ctx.App("http")
	if err != nil {
		t.Fatal(err)
	}
	return app.(*caddyhttp.App).Servers["site"]
}

// slowAnswer is a handler that takes a while, and says of most responses what they have cost.
type slowAnswer struct{}

func init() { caddy.RegisterModule(slowAnswer{}) }

func (slowAnswer) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.slow_answer", New: func() caddy.Module { return slowAnswer{} }}
}

func (slowAnswer) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	n := time.Now().UnixNano() / 1000
	time.Sleep(time.Duration(1+n%1500) * time.Millisecond)
	body := "{}"
	if n%7 > 0 {
		w.Header().Set("X-Cost", fmt.Sprint(float64(n%120)/2))
		body = fmt.Sprintf(`{"cost":%v}`, float64(n%120)/2)
	}
	w.Header().Set("Content-Type", "application/json")
	status, _ := strconv.Atoi(r.URL.Query().Get("status"))
	w.WriteHeader(status)
	_, err := io.WriteString(w, body+strings.Repeat(" ", int(n%90)))
	return err
}

// drive sends requests of some clients at random times, at least 1 ms apart, and returns the access
// log in the time by which the handler has decided. change, if it is not nil, changes them.
func drive(t *testing.T, s *caddyhttp.Server, requests int, seed uint64, change func(*rand.Rand, *http.Request)) string {
	accessLog.Lock()
	accessLog.Reset()
	accessLog.Unlock()
	ahead := int64(0)
	synctest.Test(t, func(t *testing.T) {
		ahead = clock.Now() - time.Now().UnixNano()
		time.Sleep(time.Minute - time.Duration(clock.Now()%int64(time.Minute)))
		rng := rand.New(rand.NewPCG(seed, 1))
		for range requests {
			gap := time.Millisecond + time.Duration(rng.IntN(30_000))*time.Microsecond
			if rng.IntN(60) == 0 {
				gap += 3 * time.Second
			}
			time.Sleep(gap + 333*time.Nanosecond)
			r := httptest.NewRequest(http.MethodGet, fmt.Sprintf("http://example.com/?status=%d", 200+201*rng.IntN(2)), nil)
			r.RemoteAddr = fmt.Sprintf("203.0.113.%d:4711", rng.IntN(3)*rng.IntN(2))
			if change != nil {
				change(rng, r)
			}
			go s.ServeHTTP(httptest.NewRecorder(), r)
		}
		time.Sleep(time.Minute) // queues
	})
	accessLog.Lock()
	defer accessLog.Unlock()
	return regexp.MustCompile(`"ts":\d+`).ReplaceAllStringFunc(accessLog.String(), func(ts string) string {
		at, err := strconv.ParseInt(ts[len(`"ts":`):], 10, 64)
		if err != nil {
			t.Error(err)
		}
		return fmt.Sprintf(`"ts":%d`, at+ahead)
	})
}

// replayed drives a configuration, replays what it logs, and returns of how many requests that
// differs from what the log shows.
func replayed(t *testing.T, config string, requests int, seed uint64, change func(*rand.Rand, *http.Request), o simulate.Options) (r *simulate.Report, differ int) {
	t.Helper()
	server := serverOf(t, config)
	log := drive(t, server, requests, seed, change)
	if err := server.Routes[0].Handlers[0].(*caddyhttp.Subroute).Routes[0].Handlers[0].(*ratelimit.Handler).Cleanup(); err != nil {
		t.Fatal(err)
	}
	policy, err := simulate.Load([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	files, err := accesslog.Open([]string{"-"}, bytes.NewReader([]byte(log)))
	if err != nil {
		t.Fatal(err)
	}
	o.Reorder = time.Minute
	o.Each = func(rec *accesslog.Record, denied bool) {
		if denied != (rec.Status == http.StatusTooManyRequests) {
			differ++
		}
	}
	r, err = simulate.Run(policy, files, o)
	if err != nil {
		t.Fatal(err)
	}
	return r, differ
}

// A simulation decides as Caddy has decided with the same configuration, request for request: all
// algorithms, alone and beside each other.
func TestSimulationIsTrue(t *testing.T) {
	for name, zones := range map[string]string{
		"fixed_window":    `"a":{"limits":[{"max_events":20,"window":"1s"}],"algorithm":"fixed_window"}`,
		"sliding_window":  `"a":{"limits":[{"max_events":20,"window":"1s"}],"algorithm":"sliding_window"}`,
		"sub-windows":     `"a":{"limits":[{"max_events":20,"window":"1s"}],"algorithm":"sliding_window","sub_windows":6,"count_denied":true}`,
		"sliding_log":     `"a":{"limits":[{"max_events":20,"window":"1s"}],"algorithm":"sliding_log"}`,
		"token_bucket":    `"a":{"limits":[{"max_events":20,"window":"1s"}],"algorithm":"token_bucket","burst":7}`,
		"gcra":            `"a":{"limits":[{"max_events":20,"window":"1s"}],"algorithm":"gcra","burst":3}`,
		"leaky_bucket":    `"a":{"limits":[{"max_events":20,"window":"1s"}],"algorithm":"leaky_bucket","queue":5}`,
		"cost":            `"a":{"limits":[{"max_events":60,"window":"1s"}],"cost":[{"units":"{http.request.uri.query.status}","factor":0.01}],"cost_default":1}`,
		"cost, bucket":    `"a":{"limits":[{"max_events":60,"window":"1s"}],"algorithm":"token_bucket","cost":[{"units":"{http.request.uri.query.status}","factor":0.01}],"cost_default":1}`,
		"several windows": `"a":{"limits":[{"max_events":20,"window":"1s"},{"max_events":60,"window":"10s"}]}`,
		"count_responses": `"a":{"limits":[{"max_events":20,"window":"1s"}],"count_responses":{"status_code":[401]}}`,
		"ban":             `"a":{"limits":[{"max_events":20,"window":"1s"}],"ban":{"for":"700ms","after":{"max_events":3,"window":"2s"}}}`,
		"ban that grows":  `"a":{"limits":[{"max_events":20,"window":"1s"}],"ban":{"for":"200ms","after":{"max_events":3,"window":"2s"},"growing":"3s"}}`,
		"soon forgotten":  `"a":{"limits":[{"max_events":20,"window":"1s"}],"ban":{"for":"200ms","growing":"600ms"}},"b":{"limits":[{"max_events":30,"window":"2s"}],"ban":{"for":"100ms","growing":"5s"},"enforce":0}`,
		"reserve":         `"a":{"limits":[{"max_events":40,"window":"1s"}],"key":"all","reserve":[{"share":0.5,"match":[{"query":{"status":["200"]}}]}]}`,
		"two queues": `"a":{"limits":[{"max_events":20,"window":"1s"},{"max_events":45,"window":"4s"}],"algorithm":"leaky_bucket","queue":5},
			"b":{"limits":[{"max_events":30,"window":"1s"}],"key":"all","algorithm":"leaky_bucket","queue":2}`,
		"several zones": `"a":{"limits":[{"max_events":20,"window":"1s"}],"algorithm":"leaky_bucket","queue":5},
			"b":{"limits":[{"max_events":45,"window":"2s"}],"key":"all","algorithm":"sliding_log"},"c":{"limits":[{"max_events":10,"window":"1s"}],"enforce":0}`,
		"header":                 `"a":{"limits":[{"max_events":300,"window":"1s"}],"cost":[{"units":20}],"response_cost":[{"header":"X-Cost"}]}`,
		"bytes, count_responses": `"a":{"limits":[{"max_events":300,"window":"1s"}],"algorithm":"fixed_window","cost":[{"units":20}],"response_cost":[{"bytes":true,"factor":0.5}],"count_responses":{"status_code":[200]}}`,
		"both, bucket":           `"a":{"limits":[{"max_events":300,"window":"1s"}],"algorithm":"token_bucket","cost":[{"units":20}],"response_cost":[{"header":"X-Cost"},{"bytes":true}],"response_cost_default":70,"count_responses":{"status_code":[200]}}`,
		"both, log":              `"a":{"limits":[{"max_events":300,"window":"1s"}],"algorithm":"sliding_log","cost":[{"units":20}],"response_cost":[{"bytes":true},{"header":"X-Cost"}]},"b":{"limits":[{"max_events":900,"window":"4s"}],"key":"all","algorithm":"gcra","cost":[{"units":30}],"response_cost":[{"header":"X-Cost"}]}`,
	} {
		handlers := `{"handler":"rate_limit","rate_limits":{` + zones + `}}`
		if strings.Contains(zones, "response_cost") {
			handlers += `,{"handler":"slow_answer"}`
		}
		r, differ := replayed(t, simulated(handlers), 600, 7, nil, simulate.Options{})
		if r.Requests != 600 || r.Reached != 600 || r.DeniedInLog < 20 || r.DeniedInLog > 550 {
			t.Errorf("%s: %d requests, %d came to the limit, %d were denied", name, r.Requests, r.Reached, r.DeniedInLog)
		}
		if differ > 0 {
			t.Errorf("%s: of %d requests %d are decided otherwise", name, r.Requests, differ)
		}
	}
}

// So it is with random costs of requests and of responses, from any source of them and beside each
// other option, where requests have whatever clients may send.
func TestSimulationIsTrueOfRandomCosts(t *testing.T) {
	denied, settling := 0, 0
	for seed := range uint64(24) {
		rng := rand.New(rand.NewPCG(seed, 5))
		zone := randomCosts(rng)
		config := simulated(`{"handler":"rate_limit","rate_limits":{"a":{` + zone + `}}},{"handler":"slow_answer"}`)
		r, differ := replayed(t, config, 300, seed, func(rng *rand.Rand, r *http.Request) {
			costs := []string{"", "0", "0.5", "1", "3", "12.0", "1e1", "-1", "NaN", "0x10", "1,2", "1e30", strings.Repeat("9", 40), "250", strconv.Itoa(rng.IntN(60))}
			r.URL.RawQuery += "&c=" + costs[rng.IntN(len(costs))]
			r.RequestURI = r.URL.RequestURI()
			body := make([]byte, rng.IntN(200))
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			r.Header.Set("Content-Length", strconv.Itoa(len(body))) // as the server leaves it
		}, simulate.Options{CostField: "resp_headers.X-Cost"})
		if r.Requests != 300 || r.Reached != 300 || differ > 0 {
			t.Errorf("seed %d, %s: of %d requests %d came to the limit, %d were denied, and %d are decided otherwise", seed, zone, r.Requests, r.Reached, r.DeniedInLog, differ)
		}
		denied += int(r.DeniedInLog)
		if strings.Contains(zone, "response_cost") {
			settling++
		}
	}
	if denied < 24*300/10 || denied > 24*300*9/10 || settling < 6 || settling > 20 {
		t.Errorf("%d requests were denied, and %d zones settle", denied, settling)
	}
}

// randomCosts returns a random zone with costs, as JSON.
func randomCosts(rng *rand.Rand) string {
	pick := func(all ...string) string { return all[rng.IntN(len(all))] }
	limit := 60 + rng.IntN(300)
	algorithm := pick("fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra", "leaky_bucket")
	zone := fmt.Sprintf(`"algorithm":%q,"limits":[{"max_events":%d,"window":"1s"}%s]`, algorithm, limit, pick("", fmt.Sprintf(`,{"max_events":%d,"window":"4s"}`, 3*limit)))
	zone += pick("", `,"key":"all"`)
	zone += `,"cost":[{"units":"{http.request.uri.query.c}","factor":0.5}` + pick("", `,{"units":"{http.request.uri.query.c}"}`, `,{"bytes":true,"factor":0.1}`, `,{"units":7.5}`)
	zone += fmt.Sprintf(`],"cost_default":%d`, rng.IntN(30))
	const ban = `,"ban":{"for":"300ms","after":{"max_events":5,"window":"2s"}}`
	if algorithm == "leaky_bucket" {
		return zone + fmt.Sprintf(`,"queue":%d`, rng.IntN(100)) + pick("", ban)
	}
	zone += pick("", ban, `,"reserve":[{"share":0.3,"match":[{"query":{"status":["200"]}}]}]`)
	if rng.IntN(3) == 0 {
		return zone
	}
	zone += `,"response_cost":[` + pick(`{"header":"X-Cost"}`, `{"bytes":true,"factor":0.5}`, `{"json":["cost"]}`) + pick("", `,{"header":"X-Cost","factor":0.1}`) + "]"
	return zone + pick("", `,"count_responses":{"status_code":[200]}`, `,"count_responses":{"status_code":[200]},"response_cost_default":70`)
}

// root is the directory of the repository, where the tests begin.
var root, _ = os.Getwd()

// exampleLog is the access log of docs/simulate.md.
func exampleLog(t *testing.T) []byte {
	t.Helper()
	log, err := exec.Command("awk", "-f", filepath.Join(root, "internal/simulate/testdata/example.awk")).Output()
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// simulateCommand runs `caddy rate-limit simulate` in a directory with the example's log.
func simulateCommand(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	log := exampleLog(t)
	t.Chdir(t.TempDir())
	if err := os.WriteFile("access.log", log, 0o600); err != nil {
		t.Fatal(err)
	}
	root, limit := &cobra.Command{Use: "caddy", SilenceUsage: true, SilenceErrors: true}, &cobra.Command{Use: "rate-limit"}
	command.RateLimit().CobraFunc(limit)
	root.AddCommand(limit)
	var b bytes.Buffer
	root.SetOut(&b)
	root.SetErr(&b)
	root.SetArgs(append([]string{"rate-limit", "simulate"}, args...))
	err = root.Execute()
	return b.String(), err
}

// The example of docs/simulate.md is what the command prints, and the first chart of its report is
// that of a file. UPDATE_GOLDENS=1 draws it.
func TestSimulateExample(t *testing.T) {
	page, file := sitetest.ReadPage(t, "docs/simulate.md"), filepath.Join(root, "testdata/report-over-time.svg")
	_, after, _ := strings.Cut(page, "$ caddy rate-limit simulate --limit 100/1m access.log\n")
	want, _, ok := strings.Cut(after, "```")
	got, err := simulateCommand(t, "--limit", "100/1m", "access.log", "--html", "report.html")
	if err != nil || !ok || got != want {
		t.Errorf("it prints %v\n%s\nwant\n%s", err, got, want)
	}
	_, first, _ := strings.Cut(html.UnescapeString(sitetest.ReadPage(t, "report.html")), "data:image/svg+xml;base64,")
	first, _, _ = strings.Cut(first, `"`)
	drawn, err := base64.StdEncoding.DecodeString(first)
	if err != nil || len(drawn) == 0 {
		t.Fatalf("the report's first picture: %v", err)
	}
	if redistest.UpdateGoldens {
		if err := os.WriteFile(file, drawn, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if shown := sitetest.ReadPage(t, file); shown != string(drawn) {
		t.Errorf("%s is not what the report has; UPDATE_GOLDENS=1 draws it", file)
	}
}

// A check that judges no request is no success: the log is that of other sites.
func TestSimulateChecksNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte("elsewhere.example {\n\trate_limit 5/1m\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := simulateCommand(t, "--config", file, "--max-denied", "1%", "access.log")
	if err == nil || !strings.Contains(err.Error(), "nothing is checked") || !strings.Contains(out, "No request comes to it.") {
		t.Errorf("it says %v, %s", err, out)
	}
	if _, err = simulateCommand(t, "--config", file, "access.log"); err != nil {
		t.Errorf("without --max-denied: %v", err)
	}
}

// More denied than --max-denied allows is an error of its own exit code, and the report is complete
// all the same. With --json and --html it comes in other forms.
func TestSimulateFlags(t *testing.T) {
	out, err := simulateCommand(t, "--limit", "100/1m", "--max-denied", "0.1%", "access.log")
	if err == nil || !strings.Contains(out, "\nError: more is denied than --max-denied allows: zone limit denies 9.96%\n") || !strings.Contains(out, "What no log tells") ||
		reflect.Indirect(reflect.ValueOf(err)).FieldByName("ExitCode").Int() != 2 {
		t.Errorf("with --max-denied 0.1%%: %v, %s", err, out)
	}
	out, err = simulateCommand(t, "--limit", "100/1m", "--limit", "5000/1h", "--algorithm", "gcra", "--burst", "20", "--max-denied", "90%", "--json", "--show-keys", "--html", "report.html", "access.log")
	var r simulate.Report
	if err != nil || json.Unmarshal([]byte(out), &r) != nil || len(r.Zones[0].Top) == 0 || r.Requests != 20_000 || r.Zones[0].Top[0].Key != "203.0.113.99" || len(r.Zones[0].Windows) != 2 {
		t.Errorf("with --json: %v, %s", err, out)
	}
	if html, err := os.ReadFile("report.html"); err != nil || !bytes.Contains(html, []byte("203.0.113.99")) {
		t.Errorf("with --html: %v, %d bytes", err, len(html))
	}
	if _, err = simulateCommand(t, "--limit", "100/1m", "--limit", "900/1h", "--queue", "5", "access.log"); err == nil || !strings.Contains(err.Error(), "leaky_bucket") {
		t.Errorf("with an option of another algorithm: %v", err)
	}
}

// A log of forty days is decided by the days and months of a calendar, as they were.
func TestSimulationOfACalendarIsTrue(t *testing.T) {
	config := simulated(`{"handler":"rate_limit","rate_limits":{"plan":{"limits":[{"max_events":7,"window":"day"},{"max_events":90,"window":"month"}],"calendar":{"zone":"America/St_Johns","from":31}}}}`)
	days := func(rng *rand.Rand, _ *http.Request) { time.Sleep(time.Duration(rng.Int64N(int64(4 * time.Hour)))) }
	r, differ := replayed(t, config, 480, 5, days, simulate.Options{})
	if r.Reached != 480 || differ > 0 || r.DeniedInLog < 40 || r.DeniedInLog > 400 {
		t.Errorf("%d came to the limit, %d were denied, and %d are decided otherwise", r.Reached, r.DeniedInLog, differ)
	}
}
