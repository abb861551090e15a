package ratelimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/goleak"

	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// relay is a network in this process that Caddy's servers listen on: a connection that one of them
// has not accepted when it closes goes to the next. What Caddy and net/http themselves do to
// connections in a reload is not in question here.
var relay = make(chan net.Conn)

// ear is a listener on the relay.
type ear struct {
	closed chan struct{}
	once   sync.Once
}

func init() {
	caddy.RegisterNetwork("tidetest", func(context.Context, string, string, string, uint, net.ListenConfig) (any, error) {
		return &ear{closed: make(chan struct{})}, nil
	})
}

func (e *ear) Accept() (net.Conn, error) {
	select {
	case c := <-relay:
		select {
		case <-e.closed: // both were ready
			go func() { relay <- c }()
		default:
			return c, nil
		}
	case <-e.closed:
	}
	return nil, net.ErrClosed
}

func (e *ear) Close() error {
	e.once.Do(func() { close(e.closed) })
	return nil
}

func (e *ear) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// pipeEnd is an end of a pipe without a deadline for writing: the timer of one would hold the pipe
// until it ends, also when the other end has closed it.
type pipeEnd struct{ net.Conn }

func (pipeEnd) SetWriteDeadline(time.Time) error { return nil }

// lifetime is Caddy as it runs, in this process, on the relay.
type lifetime struct {
	t      *testing.T
	client *http.Client
}

// newLifetime has a client that opens a connection for each request: one that is idle when a server
// ends can be closed while a request arrives on it, is served and counted, and then the client
// sends it again.
func newLifetime(t *testing.T) *lifetime {
	l := &lifetime{t: t, client: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			near, far := net.Pipe()
			select {
			case relay <- pipeEnd{far}:
				return near, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	}}}
	t.Cleanup(func() { _ = caddy.Stop() })
	return l
}

// config is a Caddyfile with a site on the relay, and more.
func (l *lifetime) config(options, site, more string) []byte {
	l.t.Helper()
	config, err := adapt(fmt.Sprintf(`{
	admin off
	persist_config off
	auto_https off
	grace_period 30s
	log default {
		output discard
	}
	rate_limit {
		%s
	}
}
http:// {
	bind tidetest/x
	%s
}
%s`, options, site, more))
	if err != nil {
		l.t.Fatal(err)
	}
	return config
}

func (l *lifetime) load(config []byte) {
	l.t.Helper()
	if err := caddy.Load(config, true); err != nil {
		l.t.Fatalf("Load: %v", err)
	}
}

// post sends a request and returns the status and the body. What a server that is ending has read
// and not begun to serve it drops (net/http does, without a word): that is sent again, as a proxy
// or a browser does. No handler has seen it, so it must not be counted anywhere. The client itself
// sends no POST again, least of all on a new connection.
func (l *lifetime) post(path string, header ...string) (status int, body string, err error) {
	for range 100 {
		if status, body, err = l.try(path, header...); !errors.Is(err, io.EOF) {
			break
		}
	}
	return status, body, err
}

func (l *lifetime) try(path string, header ...string) (int, string, error) {
	r, err := http.NewRequest(http.MethodPost, "http://site"+path, nil)
	if err != nil {
		return 0, "", err
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	a, err := l.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	return a.StatusCode, string(body), err
}

// traffic is requests to one zone, one after the other, and what came of them.
type traffic struct {
	zone                     string
	admitted, denied, failed atomic.Int64
	first                    atomic.Value
}

// run sends requests until stop is closed.
func (f *traffic) run(l *lifetime, stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		switch status, _, err := l.post("/"+f.zone, "K", strconv.Itoa(i%8)); {
		case err != nil || status != http.StatusOK && status != http.StatusTooManyRequests:
			f.failed.Add(1)
			f.first.CompareAndSwap(nil, fmt.Sprint(status, " ", err))
		case status == http.StatusOK:
			f.admitted.Add(1)
		default:
			f.denied.Add(1)
		}
	}
}

func (f *traffic) answered() int64 { return f.admitted.Load() + f.denied.Load() + f.failed.Load() }

// under runs f under the load of all traffic.
func under(l *lifetime, all []*traffic, f func()) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, one := range all {
		wg.Go(func() { one.run(l, stop) })
	}
	f()
	close(stop)
	wg.Wait()
}

// sumIn is what a Redis holds of a zone in all.
func sumIn(t *testing.T, r *redistest.Server, zone string) (sum int64) {
	c := r.Client()
	defer c.Close()
	for _, key := range c.Keys(t.Context(), "test:*:"+zone+":*").Val() {
		text, err := c.HGet(t.Context(), key, "sum").Result()
		if err != nil {
			continue // strict mode's record of calls
		}
		first, _, _ := strings.Cut(text, " ")
		n, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			t.Fatalf("the sum of %s is %q", key, text)
		}
		sum += n
	}
	return sum
}

// heap is what is in use after a collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what the first one found only to be finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// reloads are the ways in which a configuration is replaced, in turn.
type reloads struct {
	*lifetime
	redis [2]*redistest.Server
	taken int // a port that is in use
	at    int // which redis
	tight int // the limit of the tight zone
}

func (r *reloads) written(more string) []byte {
	var zones strings.Builder
	for _, z := range []struct{ name, options string }{
		{"life-fixed", "algorithm fixed_window"}, {"life-bucket", "algorithm token_bucket"}, {"life-local", "algorithm fixed_window\nsync_rate local"},
		{"life-strict", "algorithm fixed_window\nsync_rate strict"},
	} {
		zones.WriteString(zoneBlock(z.name, fmt.Sprintf("match {\npath /%s\n}\nkey {http.request.header.K}\nlimit %d/30d\n%s", z.name, 1_000_000+r.tight, z.options)))
	}
	zones.WriteString(zoneBlock("life-tight", fmt.Sprintf("match {\npath /life-tight\n}\nkey all\nlimit %d/30d\nsync_rate local", r.tight)))
	// Both timeouts are longer than a busy machine may hold a call up: what a node decides by
	// itself after one, Redis may have decided as well.
	return r.config("redis "+r.redis[r.at].URL+"?timeout=30s\nnamespace test\nsync_rate 100ms\nstrict_timeout 30s", "rate_limit {\n"+zones.String()+"}\nrespond ok", more)
}

// reload replaces the configuration for the i-th time.
func (r *reloads) reload(i int) {
	r.t.Helper()
	switch i % 5 {
	case 0: // the same again
	case 1:
		r.tight++
	case 2:
		r.at = 1 - r.at
	case 3:
		broken := bytes.Replace(r.written(""), []byte("token_bucket"), []byte("no_bucket"), 1)
		if caddy.Load(broken, true) == nil {
			r.t.Fatal("a configuration with an unknown algorithm was loaded")
		}
		return
	case 4: // this one fails when it starts, before or after the app, and may have served by then
		r.at = 1 - r.at
		broken := r.written(fmt.Sprintf("http://:%d {\n\tbind 127.0.0.1\n\trespond no\n}\n", r.taken))
		r.at = 1 - r.at
		if caddy.Load(broken, true) == nil {
			r.t.Fatal("a configuration with a port that is taken was loaded")
		}
		return
	}
	r.load(r.written(""))
}

// Fifty reloads of all kinds under load: no request fails, no count is lost or doubled, and nothing
// is left in memory.
func TestFiftyReloadsUnderLoad(t *testing.T) {
	r := &reloads{redis: [2]*redistest.Server{redistest.Start(t), redistest.Start(t)}, tight: 50}
	taken, free := takenPort(t)
	defer free()
	r.taken = taken
	before := goleak.IgnoreCurrent()
	r.lifetime = newLifetime(t)
	r.load(r.written(""))
	var all []*traffic
	for _, zone := range []string{"life-fixed", "life-bucket", "life-local", "life-strict", "life-tight"} {
		all = append(all, &traffic{zone: zone})
	}
	rounds := func(n int) {
		under(r.lifetime, all, func() {
			for i := range n {
				r.reload(i)
				for _, f := range all {
					want := f.answered() + 2
					redistest.Eventually(t, "requests to "+f.zone+" are answered", func() bool { return f.answered() >= want })
				}
			}
		})
	}
	rounds(20) // what stays after the first reloads is no leak
	base := heap()
	rounds(50)
	var after uint64
	redistest.Eventually(t, "the heap is back within 5 %", func() bool {
		after = heap()
		return after <= base+base/20
	})
	t.Logf("heap: %d bytes before 50 reloads, %d after", base, after)
	r.checkCounts(all)
	if err := caddy.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
	r.client.CloseIdleConnections()
	goleak.VerifyNone(t, append(caddysOwn, before)...)
}

// takenPort is a port that is in use until free is called.
func takenPort(t *testing.T) (port int, free func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close
}

// caddysOwn are goroutines that Caddy leaves behind for a while, or for good: of its certificates,
// and of a lock on their storage.
var caddysOwn = []goleak.Option{
	goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*Cache).maintainAssets"),
	goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"),
}

// checkCounts holds what clients saw against the counters.
func (r *reloads) checkCounts(all []*traffic) {
	t := r.t
	for _, f := range all {
		admitted := f.admitted.Load()
		t.Logf("%s: %d admitted, %d denied", f.zone, admitted, f.denied.Load())
		if f.failed.Load() > 0 {
			t.Errorf("%s: %d requests failed, the first with %v", f.zone, f.failed.Load(), f.first.Load())
		}
		switch f.zone {
		case "life-tight":
			if admitted != int64(r.tight) {
				t.Errorf("%s: %d admitted, want the last limit, %d", f.zone, admitted, r.tight)
			}
		case "life-local":
			shows(t, f.zone, fmt.Sprintf("has counted %d", admitted), func(z operate.LimitState) bool { return z.Own == admitted })
		case "life-strict": // each Redis holds what it decided
			if got := sumIn(t, r.redis[0], f.zone) + sumIn(t, r.redis[1], f.zone); got != admitted {
				t.Errorf("%s: the two Redis hold %d, want the %d that were admitted", f.zone, got, admitted)
			}
		default:
			shows(t, f.zone, fmt.Sprintf("has counted %d", admitted), func(z operate.LimitState) bool { return z.Own == admitted && z.Unsent == 0 })
			if got := sumIn(t, r.redis[r.at], f.zone); got != admitted {
				t.Errorf("%s: redis holds %d, want the %d that were admitted", f.zone, got, admitted)
			}
		}
		if f.zone != "life-tight" && f.denied.Load() > 0 {
			t.Errorf("%s: %d requests were denied", f.zone, f.denied.Load())
		}
	}
}

// holder keeps requests in the configuration that took them until the test lets them go on.
type holder struct{}

var holding struct {
	sync.Mutex
	entered chan struct{}
	release chan struct{}
}

func init() { caddy.RegisterModule(holder{}) }

func (holder) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.tide_test_hold", New: func() caddy.Module { return new(holder) }}
}

func (holder) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if r.Header.Get("Hold") != "" {
		holding.Lock()
		entered, release := holding.entered, holding.release
		holding.Unlock()
		entered <- struct{}{}
		<-release
	}
	return next.ServeHTTP(w, r)
}

// While a reload hands over, requests that the old configuration took and those that the new one
// takes share their counters, each under its own limit.
func TestTwoConfigurationsServeAtOnce(t *testing.T) {
	r := redistest.Start(t)
	for _, rate := range []string{"local", "100ms", "strict"} {
		for try := range 4 { // Caddy stops apps in a random order
			l := newLifetime(t)
			zone := fmt.Sprintf("both-%s-%d", rate, try)
			config := func(limit int) []byte {
				text := l.config("redis "+r.URL+"\nnamespace test\nstrict_timeout 30s", "rate_limit {\n"+
					zoneBlock(zone, fmt.Sprintf("key all\nlimit %d/30d\nalgorithm fixed_window\nsync_rate %s", limit, rate))+"}\nrespond "+strconv.Itoa(limit), "")
				return bytes.Replace(text, []byte(`{"handler":"rate_limit"`), []byte(`{"handler":"tide_test_hold"},{"handler":"rate_limit"`), 1)
			}
			l.load(config(10))
			l.handOver(config(15))
			if err := caddy.Stop(); err != nil {
				t.Fatal(err)
			}
			l.client.CloseIdleConnections()
		}
	}
}

// handOver reloads from a limit of 10 to one of 15 while 6 requests are held in the old
// configuration.
func (l *lifetime) handOver(next []byte) {
	t := l.t
	const waiting = 6
	holding.Lock()
	holding.entered, holding.release = make(chan struct{}, waiting), make(chan struct{})
	entered, release := holding.entered, holding.release
	holding.Unlock()
	old := make(chan int, waiting)
	for range waiting {
		go func() {
			status, _, err := l.post("/", "Hold", "1")
			if err != nil {
				t.Errorf("a request in the old configuration: %v", err)
			}
			old <- status
		}()
	}
	for range waiting {
		<-entered
	}
	loaded := make(chan error, 1)
	go func() { loaded <- caddy.Load(next, true) }()
	admitted := 0
	// of the new one's 15; as many as the old one had left when it began may pass there
	for admitted < 12 {
		status, body, err := l.post("/")
		if err != nil || status != http.StatusOK && body != "10" {
			if status != http.StatusTooManyRequests {
				t.Fatalf("after %d requests: %d %q, %v", admitted, status, body, err)
			}
			continue // in the old configuration, whose limit is reached
		}
		admitted++
	}
	close(release)
	for range waiting {
		if status := <-old; status != http.StatusTooManyRequests {
			t.Errorf("a request held in the old configuration: %d, want 429, as 12 of its 10 are spent", status)
		}
	}
	if err := <-loaded; err != nil {
		t.Fatalf("Load: %v", err)
	}
	for range 6 {
		if status, _, err := l.post("/"); err == nil && status == http.StatusOK {
			admitted++
		}
	}
	if admitted != 15 {
		t.Errorf("%d requests were admitted in both, want 15", admitted)
	}
}
