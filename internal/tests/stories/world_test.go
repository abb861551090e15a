// bubble: all of a story runs in one.

package stories

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
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
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	dto "github.com/prometheus/client_model/go"

	_ "github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/clock"
)

// world is a node in virtual time, and what is seen of it: by clients, operators and Redis, in the
// log and in metrics.
type world struct {
	t         *testing.T
	began     time.Time
	namespace string
	dir       string   // of files
	redis     *standIn // nil for none
	visits    []*visit
	running   *configuration // nil for none

	mu    sync.Mutex
	seen  []sight
	rough time.Time // what is seen until then is noted as at one instant, that of its beginning
	since time.Time
}

// configuration is one that a node runs.
type configuration struct {
	app    caddy.App
	ctx    caddy.Context
	cancel context.CancelFunc
	chain  []caddyhttp.MiddlewareHandler
	zones  []string
}

// sight is something that is seen.
type sight struct {
	at   time.Duration
	text string
}

// worlds gives each world a namespace of its own.
var worlds atomic.Int64

// current is the world that gets the lines of the log.
var current atomic.Pointer[world]

// begin prepares the process for worlds until the test ends.
func begin(t *testing.T) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	ids.record(t)
	to := func(l *caddy.Logging) {
		if _, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}, Logging: l}); err != nil {
			t.Fatal(err)
		}
	}
	to(logging())
	t.Cleanup(func() { to(nil) })
}

// inWorld runs something in a new world, whose clock is ahead of midnight.
func inWorld(t *testing.T, ahead time.Duration, do func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, began: time.Now(), namespace: fmt.Sprintf("net%06d", worlds.Add(1)), dir: t.TempDir()}
		t.Setenv("STORY", w.dir)
		ids.forget()
		// The clock of the process begins at the same instant each time.
		move := time.Duration(time.Now().UnixNano()-clock.Now()) + ahead
		clock.Advance(move)
		defer clock.Advance(-move)
		current.Store(w)
		defer current.Store(nil)
		do(w)
	})
}

// note notes what is seen now.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if now.Before(w.rough) {
		now = w.since
	}
	w.seen = append(w.seen, sight{now.Sub(w.began), strings.TrimRight(w.normal(fmt.Sprintf(format, args...)), "\n")})
}

// lines returns what was seen since it was called last, in the order of time.
func (w *world) lines() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.SortStableFunc(w.seen, func(a, b sight) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.text, b.text)) })
	for _, s := range w.seen {
		first, rest, more := strings.Cut(s.text, "\n")
		all = append(all, fmt.Sprintf("%9.4f  %s", s.at.Seconds(), first))
		if more {
			all = append(all, strings.Split(rest, "\n")...)
		}
	}
	w.seen = nil
	return all
}

// normal leaves out what differs from run to run.
func (w *world) normal(text string) string {
	text = ids.replace(text, func(string) string { return "<node>" })
	text = strings.NewReplacer(w.namespace, "<namespace>", w.dir, "<dir>").Replace(text)
	if host, err := os.Hostname(); err == nil {
		text = strings.ReplaceAll(text, fmt.Sprint(host, "/", os.Getpid()), "<process>")
	}
	return tracePattern.ReplaceAllString(text, "")
}

// tracePattern is what Caddy puts before an error: a random name, and where in the code it was.
var tracePattern = regexp.MustCompile(`\{id=\w+\} (\S+ \(\S+:\d+\): )?`)

// pause lets time pass.
func (w *world) pause(d time.Duration) {
	const most = 500 * time.Millisecond
	for ; d > 0; d -= most {
		time.Sleep(min(d, most))
		if w.redis != nil {
			w.redis.pass()
		}
	}
	synctest.Wait()
}

// recover has Redis be there again, and waits until this node has found it: when that is depends on
// chance.
func (w *world) recover() {
	w.mu.Lock()
	w.since = time.Now()
	w.rough = w.since.Add(3 * time.Second)
	w.mu.Unlock()
	w.redis.set("up")
	w.pause(3*time.Second + 1700*time.Microsecond)
}

// load replaces the configuration by an app and handlers, which are JSON.
func (w *world) load(app string, handlers []string) error {
	next, err := provision(app, handlers)
	if err != nil {
		w.note("not loaded: %v", err)
		return err
	}
	if err := next.app.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.stop()
	w.mu.Lock()
	w.running = next
	w.mu.Unlock()
	w.note("loaded")
	w.pause(1300 * time.Microsecond)
	return nil
}

// provision prepares a configuration.
func provision(app string, handlers []string) (*configuration, error) {
	cfg := &caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}, Logging: logging()}
	base, err := caddy.ProvisionContext(cfg)
	if err != nil {
		return nil, err
	}
	cfg.AppsRaw = caddy.ModuleMap{"rate_limit": json.RawMessage(app)}
	c := new(configuration)
	c.ctx, c.cancel = caddy.NewContext(base)
	for _, text := range handlers {
		v, err := c.ctx.LoadModuleByID("http.handlers.rate_limit", json.RawMessage(text))
		if err != nil {
			c.cancel()
			return nil, err
		}
		c.chain = append(c.chain, v.(caddyhttp.MiddlewareHandler))
		var zones struct {
			All map[string]any `json:"rate_limits"`
		}
		_ = json.Unmarshal([]byte(text), &zones) // it has loaded
		c.zones = append(c.zones, slices.Sorted(maps.Keys(zones.All))...)
	}
	v, err := c.ctx.App("rate_limit")
	if err != nil {
		c.cancel()
		return nil, err
	}
	c.app = v.(caddy.App)
	return c, nil
}

// stop ends the configuration that runs.
func (w *world) stop() {
	if w.running != nil {
		_ = w.running.app.Stop()
		w.running.cancel()
		w.running = nil
	}
}

// finish ends all that runs.
func (w *world) finish(app string) {
	for _, v := range w.visits {
		v.cancel()
		<-v.answered
	}
	// Slots of zones that were removed while requests had some are let go of with the next ones.
	if err := w.load(app, []string{`{"rate_limits":{"last":{"concurrent":1}}}`}); err != nil {
		w.t.Fatal(err)
	}
	w.stop()
	if w.redis != nil {
		w.redis.end()
	}
	w.pause(time.Second)
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

// header sets a field of a request.
func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// inEarlyData has a request come in early data.
func inEarlyData(r *http.Request) { r.TLS = &tls.ConnectionState{} }

// request sends a request, and waits for as long as one takes that need not wait.
func (w *world) request(ip, ends string, hold bool, change ...func(*http.Request)) {
	v := &visit{number: len(w.visits) + 1, ends: ends, answered: make(chan struct{})}
	if hold {
		v.do = make(chan string, 1)
	}
	w.visits = append(w.visits, v)
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	r.RemoteAddr = net.JoinHostPort(ip, "1234")
	for _, f := range change {
		f(r)
	}
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), &caddyhttp.Server{})
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, ip)
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), visitKey{}, v))
	v.cancel = cancel
	chain := w.running.chain
	go func() {
		defer close(v.answered)
		answer := httptest.NewRecorder()
		err := w.send(v, chain, answer, r.WithContext(ctx))
		cancel()
		w.noteAnswer(v, answer, r, err)
	}()
	w.pause(3100 * time.Microsecond)
}

// send sends a request through the handlers, and once more through them as an error route where the
// handler failed and the request is for that.
func (w *world) send(v *visit, chain []caddyhttp.MiddlewareHandler, answer http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		if broken := recover(); broken != nil {
			if err = fmt.Errorf("panic: %v", broken); broken != http.ErrAbortHandler && broken != "broken" {
				w.t.Error(err)
			}
		}
	}()
	err = throughAll(chain, w.serve).ServeHTTP(answer, r)
	if err != nil && r.Header.Get("Error-Route") != "" {
		w.note("request %d fails: %v", v.number, err)
		r = r.WithContext(context.WithValue(r.Context(), caddyhttp.ErrorCtxKey, err))
		return throughAll(chain[len(chain)-1:], func(answer http.ResponseWriter, r *http.Request) error {
			w.note("request %d is in the error route%s", v.number, w.placeholders(r))
			answer.WriteHeader(http.StatusNotFound)
			return nil
		}).ServeHTTP(answer, r)
	}
	return err
}

// throughAll is a handler behind others.
func throughAll(chain []caddyhttp.MiddlewareHandler, last caddyhttp.HandlerFunc) caddyhttp.HandlerFunc {
	if len(chain) == 0 {
		return last
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		return chain[0].ServeHTTP(w, r, throughAll(chain[1:], last))
	}
}

// noteAnswer notes what the client has got.
func (w *world) noteAnswer(v *visit, answer *httptest.ResponseRecorder, r *http.Request, err error) {
	const below = "\n           "
	text := fmt.Sprintf("request %d: %d", v.number, answer.Code)
	var all bytes.Buffer
	_ = answer.Result().Header.Write(&all)
	for line := range strings.Lines(all.String()) {
		text += below + strings.TrimSpace(line)
	}
	if body := answer.Body.String(); len(body) > 1000 {
		text += fmt.Sprint(below, len(body), " bytes")
	} else if body != "" {
		text += below + strings.Trim(strconv.Quote(body), `"`)
	}
	var failed caddyhttp.HandlerError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%d %w", failed.StatusCode, failed.Err)
	}
	if err != nil {
		text += below + "error: " + err.Error()
	}
	if placeholders := w.placeholders(r); placeholders != "" {
		text += below + "placeholders:" + placeholders
	}
	w.note("%s", strings.ReplaceAll(text, `\"`, `"`))
}

// placeholders are those that handlers behind and logs see.
func (w *world) placeholders(r *http.Request) (text string) {
	names := []string{"exceeded.name", "exceeded.wait", "would_deny.name", "would_deny.wait"}
	w.mu.Lock()
	if w.running != nil {
		for _, zone := range w.running.zones {
			for _, what := range []string{"limit", "remaining", "used", "reset"} {
				names = append(names, zone+"."+what)
			}
		}
	}
	w.mu.Unlock()
	slices.Sort(names)
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	for _, name := range slices.Compact(names) {
		if value, ok := repl.GetString("http.rate_limit." + name); ok && value != "" {
			text += " " + name + "=" + value
		}
	}
	return text
}

// serve is the handler behind.
func (w *world) serve(answer http.ResponseWriter, r *http.Request) error {
	v := r.Context().Value(visitKey{}).(*visit)
	w.note("request %d is admitted", v.number)
	how := v.ends
	if v.do != nil {
		select {
		case how = <-v.do:
		case <-r.Context().Done():
			how = "gone"
		}
	}
	return end(answer, how)
}

// ways are how requests end in their handler.
var ways = []string{"200", "200", "200", "401", "403", "404", "500", "hints", "stream", "error 403", "error 502", "error 500", "panic", "abort", "silent", "long", "cost 3", "cost 0"}

func end(w http.ResponseWriter, how string) error {
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
			if _, err := w.Write(bytes.Repeat([]byte("x"), 300)); err != nil {
				return err
			}
		}
	default:
		_, _ = fmt.Sscan(how, &status)
		w.WriteHeader(status)
	}
	return nil
}

// admin asks the admin endpoint.
func (w *world) admin(method, path, body string) {
	api, err := caddy.GetModule("admin.api.rate_limit")
	if err != nil {
		w.t.Fatal(err)
	}
	answer, r := httptest.NewRecorder(), httptest.NewRequest(method, path, strings.NewReader(body))
	text := ""
	err = api.New().(caddy.AdminRouter).Routes()[0].Handler.ServeHTTP(answer, r)
	var failed caddy.APIError
	if errors.As(err, &failed) {
		answer.Code, text = failed.HTTPStatus, failed.Err.Error()
	} else if err != nil {
		w.t.Error(err)
	}
	w.note("%s\n           %d %s", strings.TrimSpace(method+" "+path+" "+body), answer.Code, cmp.Or(text, answer.Body.String()))
	w.pause(2300 * time.Microsecond)
}

// metrics notes the metrics whose text has a word, where that is one those that are not 0.
func (w *world) metrics(word string) {
	families, err := w.running.ctx.GetMetricsRegistry().Gather()
	if err != nil {
		w.t.Error(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if name, text := f.GetName(), metricText(m); strings.Contains(name, "rate_limit") && strings.Contains(name+text, word) && (word == "" || !strings.HasSuffix(text, " 0")) {
				w.note("%s%s", name, text)
			}
		}
	}
}

// metricText is a metric without its exemplar, which the log has as well.
func metricText(m *dto.Metric) string {
	var labels []string
	for _, l := range m.Label {
		labels = append(labels, l.GetName()+"="+l.GetValue())
	}
	value := m.Counter.GetValue() + m.Gauge.GetValue()
	if h := m.Histogram; h != nil {
		return fmt.Sprintf("{%s} %d, in all %g", strings.Join(labels, ","), h.GetSampleCount(), h.GetSampleSum())
	}
	return fmt.Sprintf("{%s} %g", strings.Join(labels, ","), value)
}

// logging has the log go to the current world.
func logging() *caddy.Logging {
	return &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{
		Level: "DEBUG", WriterRaw: caddyconfig.JSON(map[string]string{"output": "stories"}, nil),
		EncoderRaw: caddyconfig.JSON(map[string]string{"format": "json"}, nil),
	}}}}
}

// logWriter is where the log goes.
type logWriter struct{}

func init() { caddy.RegisterModule(logWriter{}) }

// CaddyModule returns the Caddy module information.
func (logWriter) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.logging.writers.stories", New: func() caddy.Module { return new(logWriter) }}
}

func (logWriter) String() string                       { return "stories" }
func (logWriter) WriterKey() string                    { return "stories" }
func (logWriter) OpenWriter() (io.WriteCloser, error)  { return logWriter{}, nil }
func (logWriter) Close() error                         { return nil }
func (logWriter) Write(line []byte) (n int, err error) { return len(line), noteLog(line) }

// noteLog notes a line of the log of rate_limit.
func noteLog(line []byte) error {
	var fields map[string]any
	if err := json.Unmarshal(line, &fields); err != nil {
		return err
	}
	name, _ := fields["logger"].(string)
	w := current.Load()
	if w == nil || !strings.Contains(name, "rate_limit") {
		return nil
	}
	text := fmt.Sprintf("log %v %s: %v", fields["level"], name, fields["msg"])
	// keys is an estimate by hashes that differ between processes.
	for _, known := range []string{"level", "logger", "msg", "ts", "keys"} {
		delete(fields, known)
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		value, err := json.Marshal(fields[field])
		if err != nil {
			return err
		}
		text += fmt.Sprintf(" %s=%s", field, value)
	}
	w.note("%s", text)
	return nil
}
