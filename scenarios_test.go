package ratelimit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

var (
	scenarios      = flag.Int("scenarios", 150, "random scenarios that are compared with testdata/scenarios.txt, from the first one on")
	scenarioTrace  = flag.Int("scenario-trace", -1, "print all that a scenario does, and compare none")
	scenarioHashes = flag.String("scenario-hashes", "", "print the hashes of these scenarios, and compare none")
	scenarioWrites = flag.Bool("scenarios-write", false, "write testdata/scenarios.txt from what the scenarios do")
)

const scenarioFile = "testdata/scenarios.txt"

// Whatever a request, a client, a log, a metric, an operator or Redis sees in a random scenario is
// what it was when testdata/scenarios.txt was written: that has a hash of it for each seed. Time is
// that of a bubble, so a scenario does the same each time. What is asked of Redis is compared by
// client, as a multiset of messages at each instant, however they share calls.
//
// A process hashes keys its own way, and in few scenarios two of them meet in a stripe of a table,
// which then asks for one of them later; and of what happens at one instant, a busy machine does
// another thing first. So a scenario that differs runs again in processes of its own, and one that
// differed too often when the file was written has "-" there.
//
// A change of the code that is to change nothing leaves all as it is: go test -run
// '^TestScenarios$' . -scenarios 4500 compares all that the file has. Where one differs,
// -scenario-trace and its seed print what it does, before the change and after it, for diff. Where
// that is meant, -scenarios 4500 -scenarios-write writes the file again.
//
// Without -scenarios it compares a part of them, and with -race none: they are only run.
func TestScenarios(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	ids.record(t)
	logScenarios(t)
	switch {
	case *scenarioTrace >= 0:
		for _, line := range runScenario(t, uint64(*scenarioTrace)) {
			fmt.Println(line)
		}
	case *scenarioHashes != "":
		for text := range strings.SplitSeq(*scenarioHashes, ",") {
			seed, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println("scenario", seed, hashOf(runScenario(t, uint64(seed))))
		}
	case *scenarioWrites:
		writeScenarios(t)
	case redistest.Raced:
		// The detector of races has goroutines take turns at random, so that more scenarios differ.
		for seed := range *scenarios / 3 {
			runScenario(t, uint64(seed))
		}
	default:
		compareScenarios(t)
	}
}

// compareScenarios compares hashes with those of the file.
func compareScenarios(t *testing.T) {
	text, err := os.ReadFile(scenarioFile)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(string(text))
	if len(want) < *scenarios {
		t.Fatalf("%s has %d scenarios, want %d", scenarioFile, len(want), *scenarios)
	}
	var differ []int
	for seed := range *scenarios {
		if want[seed] != "-" && hashOf(runScenario(t, uint64(seed))) != want[seed] {
			differ = append(differ, seed)
		}
	}
	if most := 20 + *scenarios/6; len(differ) <= most {
		for again := 0; again < 8 && len(differ) > 0; again++ {
			got := hashesElsewhere(t, differ)
			differ = slices.DeleteFunc(differ, func(seed int) bool { return got[seed] == want[seed] })
		}
	}
	if len(differ) > 0 {
		t.Errorf("%d scenarios differ: %v; see go test -run '^TestScenarios$' . -v -scenario-trace %d", len(differ), differ[:min(len(differ), 50)], differ[0])
	}
}

// hashesElsewhere returns the hashes of scenarios in another process.
func hashesElsewhere(t *testing.T, seeds []int) map[int]string {
	list := strings.ReplaceAll(strings.Trim(fmt.Sprint(seeds), "[]"), " ", ",")
	out, err := exec.Command(os.Args[0], "-test.run", "^TestScenarios$", "-scenario-hashes", list).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := make(map[int]string)
	for line := range strings.Lines(string(out)) {
		var seed int
		var hash string
		if n, _ := fmt.Sscanf(line, "scenario %d %s", &seed, &hash); n == 2 {
			got[seed] = hash
		}
	}
	return got
}

// writeScenarios writes the file. A hash is what two processes have found, and for a scenario about
// which they differ what five of nine have.
func writeScenarios(t *testing.T) {
	votes, hashes, open := make([]map[string]int, *scenarios), make([]string, *scenarios), []int(nil)
	for seed := range votes {
		votes[seed], hashes[seed], open = make(map[string]int), "-", append(open, seed)
	}
	for round := 1; round <= 9 && len(open) > 0; round++ {
		got := hashesElsewhere(t, open)
		for _, seed := range open {
			votes[seed][got[seed]]++
			if n := votes[seed][got[seed]]; n >= 5 || n == 2 && round == 2 {
				hashes[seed] = got[seed]
			}
		}
		open = slices.DeleteFunc(open, func(seed int) bool { return hashes[seed] != "-" })
	}
	var text strings.Builder
	for seed, hash := range hashes {
		fmt.Fprint(&text, hash, map[bool]string{true: "\n", false: " "}[seed%8 == 7 || seed == len(hashes)-1])
	}
	if err := os.WriteFile(scenarioFile, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d scenarios differ from process to process: %v", len(open), open)
}

func hashOf(lines []string) string {
	h := fnv.New64a()
	for _, line := range lines {
		_, _ = io.WriteString(h, line+"\n")
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// scenario is a node with a random configuration, and all that is seen of it.
type scenario struct {
	t         *testing.T
	random    *rand.Rand
	began     time.Time
	namespace string
	handlers  []scenarioHandler
	withRedis bool
	redis     *scenarioRedis // nil for none
	visits    []*visit
	chain     []*Handler // of the current configuration
	app       *App
	cancel    context.CancelFunc
	loads     int

	mu    sync.Mutex
	seen  []sight
	rough time.Time // what is seen until then is noted as at one instant, that of its beginning
	since time.Time
}

// sight is something that is seen.
type sight struct {
	at   time.Duration
	text string
}

// scenarioCount gives each run of a scenario a namespace of its own.
var scenarioCount atomic.Int64

// runningScenario is the one that gets the lines of the log.
var runningScenario atomic.Pointer[scenario]

// runScenario returns what is seen in a scenario, in the order of time.
func runScenario(t *testing.T, seed uint64) (lines []string) {
	synctest.Test(t, func(t *testing.T) {
		s := &scenario{t: t, random: rand.New(rand.NewPCG(seed, 2026)), began: time.Now(), namespace: fmt.Sprintf("net%06d", scenarioCount.Add(1))}
		ids.mu.Lock()
		ids.all = ids.all[:0]
		ids.mu.Unlock()
		// The clock of the process begins at the same instant each time.
		ahead := time.Duration(s.random.IntN(3)) * 1370 * time.Millisecond
		move := time.Duration(time.Now().UnixNano()-clock.Now()) + ahead
		clock.Advance(move)
		defer clock.Advance(-move)
		runningScenario.Store(s)
		defer runningScenario.Store(nil)
		s.run()
		slices.SortStableFunc(s.seen, func(a, b sight) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.text, b.text)) })
		for _, seen := range s.seen {
			lines = append(lines, fmt.Sprintf("%12.6f %s", seen.at.Seconds(), seen.text))
		}
	})
	return lines
}

// use sets the configuration, and current is it for requests, which go on meanwhile.
func (s *scenario) use(all []scenarioHandler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers = all
}

func (s *scenario) current() []scenarioHandler {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handlers
}

// note notes what is seen now.
func (s *scenario) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Before(s.rough) {
		now = s.since
	}
	s.seen = append(s.seen, sight{now.Sub(s.began), fmt.Sprintf(format, args...)})
}

// command notes a command in Redis. While nodes find it again, they ask at random.
func (s *scenario) command(kind, text string) {
	s.mu.Lock()
	rough := time.Now().Before(s.rough)
	s.mu.Unlock()
	if !rough || kind != "heartbeat" {
		s.note("redis %s: %s", kind, text)
	}
}

// normal leaves out what is random.
func (s *scenario) normal(text string) string {
	text = ids.replace(text, func(string) string { return "<node>" })
	text = strings.ReplaceAll(text, s.namespace, "<namespace>")
	if host, err := os.Hostname(); err == nil {
		text = strings.ReplaceAll(text, fmt.Sprint(host, "/", os.Getpid()), "<process>")
	}
	return tracePattern.ReplaceAllString(text, "")
}

// tracePattern is what Caddy puts before an error: a random name, and where in the code it was.
var tracePattern = regexp.MustCompile(`\{id=\w+\} (\S+ \(\S+:\d+\): )?`)

// run is the scenario.
func (s *scenario) run() {
	app := s.makeApp()
	if s.withRedis {
		s.redis = newScenarioRedis(s, app)
		time.Sleep(time.Second)
	}
	for range 20 {
		s.use(s.makeHandlers())
		if s.load(app) == nil {
			break
		}
	}
	if s.app == nil {
		s.t.Fatal("no configuration is valid")
	}
	for range 30 + s.random.IntN(50) {
		s.step(app)
	}
	s.finish(app)
}

// finish ends all that runs, notes how things stand, and ends the node.
func (s *scenario) finish(app string) {
	if s.redis != nil && s.redis.state() != "up" {
		s.recover()
	}
	for _, v := range s.visits {
		v.tell("200")
	}
	s.pause(2 * time.Second)
	s.look()
	for _, v := range s.visits {
		v.cancel()
	}
	s.pause(time.Second)
	s.lookAtMetrics()
	for _, v := range s.visits {
		<-v.answered
	}
	// Slots of zones that were removed while requests had some are let go of with the next ones.
	s.use([]scenarioHandler{{Zones: map[string]scenarioZone{"last": {"concurrent": 1}}}})
	if err := s.load(app); err != nil {
		s.t.Fatal(err)
	}
	_ = s.app.Stop()
	s.cancel()
	if s.redis != nil {
		s.redis.end()
	}
	s.pause(time.Second)
}

// pause lets time pass.
func (s *scenario) pause(d time.Duration) {
	const most = 500 * time.Millisecond
	for ; d > 0; d -= most {
		time.Sleep(min(d, most))
		if s.redis != nil {
			s.redis.pass()
		}
	}
	synctest.Wait()
}

// recover has Redis be there again, and waits until this node has found it: when that is depends on
// chance.
func (s *scenario) recover() {
	s.mu.Lock()
	s.since = time.Now()
	s.rough = s.since.Add(3 * time.Second)
	s.mu.Unlock()
	s.redis.set("up")
	s.pause(3*time.Second + 1700*time.Microsecond)
}

// load replaces the configuration.
func (s *scenario) load(app string) (err error) {
	defer func() {
		if err != nil {
			s.note("not loaded: %s", s.normal(err.Error()))
		}
	}()
	cfg := &caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}, Logging: scenarioLogging()}
	base, err := caddy.ProvisionContext(cfg)
	if err != nil {
		return err
	}
	cfg.AppsRaw = caddy.ModuleMap{"rate_limit": json.RawMessage(app)}
	ctx, cancel := caddy.NewContext(base)
	var chain []*Handler
	for _, h := range s.handlers {
		text, err := json.Marshal(h)
		if err != nil {
			s.t.Fatal(err)
		}
		v, err := ctx.LoadModuleByID("http.handlers.rate_limit", text)
		if err != nil {
			cancel()
			return err
		}
		chain = append(chain, v.(*Handler))
	}
	v, err := ctx.App("rate_limit")
	if err != nil {
		cancel()
		return err
	}
	next := v.(*App)
	if err := next.Start(); err != nil {
		s.t.Fatal(err)
	}
	if s.app != nil {
		_ = s.app.Stop()
		s.cancel()
	}
	s.app, s.chain, s.cancel = next, chain, cancel
	s.loads++
	s.note("loaded: %s", s.normal(jsonOf(s.handlers)))
	s.pause(1300 * time.Microsecond)
	return nil
}

// visit is a request.
type visit struct {
	number   int
	ends     string
	do       chan string // where it is to wait in its handler
	cancel   context.CancelFunc
	answered chan struct{}
}

type visitKey struct{}

// tell has a request that waits in its handler end, or that will.
func (v *visit) tell(how string) {
	select {
	case v.do <- how:
	default:
	}
}

// request sends a request, and waits for as long as one takes that need not wait.
func (s *scenario) request(ip, ends string, hold bool, change ...func(*http.Request)) {
	v := &visit{number: len(s.visits), ends: ends, answered: make(chan struct{})}
	if hold {
		v.do = make(chan string, 1)
	}
	s.visits = append(s.visits, v)
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	r.RemoteAddr = net.JoinHostPort(ip, "1234")
	for _, f := range change {
		f(r)
	}
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), &caddyhttp.Server{})
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, ip)
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), visitKey{}, v))
	v.cancel = cancel
	chain := s.chain
	go func() {
		defer close(v.answered)
		w := httptest.NewRecorder()
		err := s.send(v, chain, w, r.WithContext(ctx))
		cancel()
		s.noteAnswer(v, w, r, err)
	}()
	s.pause(3100 * time.Microsecond)
}

// send sends a request through the handlers, and once more through them as an error route where the
// handler failed and the request is for that.
func (s *scenario) send(v *visit, chain []*Handler, w http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		if broken := recover(); broken != nil {
			err = fmt.Errorf("panic: %v", broken)
		}
	}()
	err = throughAll(chain, s.serve).ServeHTTP(w, r)
	if err != nil && r.Header.Get("Error-Route") != "" {
		s.note("request %d: error route: %s", v.number, s.normal(err.Error()))
		r = r.WithContext(context.WithValue(r.Context(), caddyhttp.ErrorCtxKey, err))
		return throughAll(chain[len(chain)-1:], func(w http.ResponseWriter, r *http.Request) error {
			s.note("request %d: in the error route%s", v.number, placeholdersOf(r, s.current()))
			w.WriteHeader(http.StatusNotFound)
			return nil
		}).ServeHTTP(w, r)
	}
	return err
}

// throughAll is a handler behind others.
func throughAll(chain []*Handler, last caddyhttp.HandlerFunc) caddyhttp.HandlerFunc {
	if len(chain) == 0 {
		return last
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		return chain[0].ServeHTTP(w, r, throughAll(chain[1:], last))
	}
}

// noteAnswer notes what the client has got.
func (s *scenario) noteAnswer(v *visit, w *httptest.ResponseRecorder, r *http.Request, err error) {
	var all bytes.Buffer
	_ = w.Result().Header.Write(&all)
	text := fmt.Sprint(err)
	var failed caddyhttp.HandlerError
	if errors.As(err, &failed) {
		text = fmt.Sprint(failed.StatusCode, " ", failed.Err)
	}
	s.note("request %d: %d %q %q %s%s", v.number, w.Code, strings.ReplaceAll(all.String(), "\r\n", "|"), w.Body.String(), s.normal(text), placeholdersOf(r, s.current()))
}

// placeholdersOf are those that handlers behind and logs see.
func placeholdersOf(r *http.Request, handlers []scenarioHandler) (text string) {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	names := []string{"exceeded.name", "exceeded.wait", "would_deny.name", "would_deny.wait"}
	for _, h := range handlers {
		for name := range h.Zones {
			for _, what := range []string{"limit", "remaining", "used", "reset"} {
				names = append(names, name+"."+what)
			}
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if value, ok := repl.GetString("http.rate_limit." + name); ok {
			text += " " + name + "=" + value
		}
	}
	return text
}

// serve is the handler behind.
func (s *scenario) serve(w http.ResponseWriter, r *http.Request) error {
	v := r.Context().Value(visitKey{}).(*visit)
	s.note("request %d: admitted%s", v.number, placeholdersOf(r, s.current()))
	how := v.ends
	if v.do != nil {
		select {
		case how = <-v.do:
		case <-r.Context().Done():
			how = "gone"
		}
	}
	return endVisit(w, how)
}

// scenarioEnds are how requests end in their handler.
var scenarioEnds = []string{"200", "200", "200", "401", "403", "404", "500", "hints", "stream", "error 403", "error 502", "error 500", "panic", "abort", "silent", "long", "cost 3", "cost 0"}

func endVisit(w http.ResponseWriter, how string) error {
	status, cost := 0, 0
	if n, _ := fmt.Sscanf(how, "error %d", &status); n == 1 {
		return caddyhttp.Error(status, errors.New(how))
	}
	if n, _ := fmt.Sscanf(how, "cost %d", &cost); n == 1 {
		w.Header().Set("X-Cost", strconv.Itoa(cost))
		w.Header().Set("Content-Type", "application/json")
		_, err := fmt.Fprintf(w, `{"cost":%d}`, cost)
		return err
	}
	switch how {
	case "panic":
		panic("broken")
	case "abort":
		panic(http.ErrAbortHandler)
	case "silent", "gone":
		return nil
	case "hints":
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusOK)
	case "stream":
		w.WriteHeader(http.StatusUnauthorized)
		_ = http.NewResponseController(w).Flush()
		time.Sleep(120 * time.Millisecond)
		_, _ = io.WriteString(w, "streamed")
	case "long":
		for range 5 {
			if _, err := w.Write(make([]byte, 300)); err != nil {
				return err
			}
		}
	default:
		_, _ = fmt.Sscan(how, &status)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, how)
	}
	return nil
}

// look notes how the node stands.
func (s *scenario) look() {
	s.admin(http.MethodGet, "/rate_limit/", "")
	for _, h := range s.handlers {
		for _, name := range h.names() {
			for _, key := range scenarioKeys {
				s.admin(http.MethodPost, "/rate_limit/explain", fmt.Sprintf(`{"zone":%q,"key":%q}`, name, key))
			}
		}
	}
	s.lookAtMetrics()
}

// admin asks the admin endpoint.
func (s *scenario) admin(method, path, body string) {
	status, text := ask(method, path, body)
	s.note("%s %s %s: %d %s", method, path, body, status, s.normal(text))
	s.pause(2300 * time.Microsecond)
}

// lookAtMetrics notes the metrics.
func (s *scenario) lookAtMetrics() {
	families, err := s.app.ctx.GetMetricsRegistry().Gather()
	if err != nil {
		s.t.Error(err)
	}
	for _, f := range families {
		if strings.Contains(f.GetName(), "rate_limit") {
			for _, m := range f.GetMetric() {
				s.note("metric %s%s", f.GetName(), s.normal(metricText(m)))
			}
		}
	}
}

// metricText is a metric without its exemplar, which the log has as well.
func metricText(m *dto.Metric) string {
	if m.Counter != nil {
		m.Counter.Exemplar = nil
	}
	return strings.Join(strings.Fields(m.String()), " ")
}

// scenarioLogging has the log go to the scenario.
func scenarioLogging() *caddy.Logging {
	return &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{
		Level: "DEBUG", WriterRaw: caddyconfig.JSON(map[string]string{"output": "scenario"}, nil),
		EncoderRaw: caddyconfig.JSON(map[string]string{"format": "json"}, nil),
	}}}}
}

// logScenarios has the log of the process go to the scenarios until the test ends.
func logScenarios(t *testing.T) {
	to := func(l *caddy.Logging) {
		if _, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}, Logging: l}); err != nil {
			t.Fatal(err)
		}
	}
	to(scenarioLogging())
	t.Cleanup(func() { to(nil) })
}

// scenarioLog is where the log goes.
type scenarioLog struct{}

func init() { caddy.RegisterModule(scenarioLog{}) }

// CaddyModule returns the Caddy module information.
func (scenarioLog) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.logging.writers.scenario", New: func() caddy.Module { return new(scenarioLog) }}
}

func (scenarioLog) String() string                       { return "scenario" }
func (scenarioLog) WriterKey() string                    { return "scenario" }
func (scenarioLog) OpenWriter() (io.WriteCloser, error)  { return scenarioLog{}, nil }
func (scenarioLog) Close() error                         { return nil }
func (scenarioLog) Write(line []byte) (n int, err error) { return len(line), noteLine(line) }

// noteLine notes a line of the log of rate_limit.
func noteLine(line []byte) error {
	var fields map[string]any
	if err := json.Unmarshal(line, &fields); err != nil {
		return err
	}
	name, _ := fields["logger"].(string)
	s := runningScenario.Load()
	if s == nil || !strings.Contains(name, "rate_limit") {
		return nil
	}
	delete(fields, "ts")
	delete(fields, "keys") // an estimate by hashes that differ between processes
	text, err := json.Marshal(fields)
	s.note("log %s", s.normal(string(text)))
	return err
}

// inEarlyData has a request come in early data.
func inEarlyData(r *http.Request) { r.TLS = &tls.ConnectionState{} }
