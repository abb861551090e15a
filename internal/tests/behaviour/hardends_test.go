package behaviour_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/websocket"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// ends is a handler that ends as the path of a request says.
type ends struct{}

func init() {
	caddy.RegisterModule(ends{})
	httpcaddyfile.RegisterHandlerDirective("ends", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		h.Next()
		return ends{}, nil
	})
}

func (ends) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.ends", New: func() caddy.Module { return ends{} }}
}

// entered and leave are of requests on the path /held, which wait in the handler.
var entered, leave = make(chan struct{}), make(chan struct{})

func (ends) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if r.Method == http.MethodOptions { // isSpent asks
		return nil
	}
	switch what, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); what {
	case "panics":
		panic("broken")
	case "panics-late":
		_, _ = io.WriteString(w, "begun")
		panic("broken")
	case "aborts":
		panic(http.ErrAbortHandler)
	case "fails":
		return caddyhttp.Error(http.StatusUnauthorized, errors.New("no"))
	case "hints":
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusOK)
	case "silent":
	case "twice":
		w.WriteHeader(http.StatusUnauthorized)
		w.WriteHeader(http.StatusOK)
	case "uploads":
		n, err := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n)
		return err
	case "taken":
		c, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return err
		}
		_, _ = buf.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\ntaken")
		_ = buf.Flush()
		return c.Close()
	case "held":
		entered <- struct{}{}
		<-leave
	default:
		return next.ServeHTTP(w, r)
	}
	return nil
}

// endingBackend ends responses as an upstream can.
func endingBackend(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch what, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); what {
		case "cut": // before the status
			panic(http.ErrAbortHandler)
		case "cut-late":
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "begun")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "socket":
			websocket.Handler(func(c *websocket.Conn) { _, _ = io.Copy(c, c) }).ServeHTTP(w, r)
		case "events":
			sendEvents(w, r)
		case "waits":
			_, _ = io.Copy(io.Discard, r.Body) // so that it learns of a client that goes
			entered <- struct{}{}
			<-r.Context().Done()
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// everyOption is a site on which a request passes all options at once. Each path has one unit of
// which it depends on the response whether it is spent.
func everyOption(t *testing.T) *sitetest.Served {
	zones := sitetest.ZoneBlock("ends-guess", "limit 1/30d\nalgorithm fixed_window\nkey {http.request.uri.path}\ncount_responses 401") +
		sitetest.ZoneBlock("ends-ban", "limit 100000/30d\nban 1h") + sitetest.ZoneBlock("ends-run", "concurrent 40\nkey all") +
		sitetest.ZoneBlock("ends-keep", "limit 100000/30d\nkey all\nreserve @paying 20%") + sitetest.ZoneBlock("ends-slow", "bandwidth 1GiB/s\nkey all")
	return sitetest.StartCaddy(t, "", "@paying header X-Class paying\nroute {\nrate_limit {\n"+zones+"}\nends\nreverse_proxy "+endingBackend(t)+"\n}")
}

// leavesWith is a client that leaves when it has so many bytes of a response that goes on.
func leavesWith(s *sitetest.Served, protocol string, bytes int64, change ...func(*http.Request)) {
	s.T.Helper()
	ctx, leave := context.WithCancel(s.T.Context())
	defer leave()
	a, err := s.Open(ctx, protocol, change...)
	if err != nil {
		s.T.Errorf("%s: %v, want a response", protocol, err)
		return
	}
	if n, err := io.CopyN(io.Discard, a.Body, bytes); err != nil {
		s.T.Errorf("%s: %d bytes, %v, want %d", protocol, n, err, bytes)
	}
	leave()
	_ = a.Body.Close()
}

// leavesBefore is a client that leaves when its request has entered what answers it, before that
// begins to.
func leavesBefore(s *sitetest.Served, protocol string, change ...func(*http.Request)) {
	ctx, leave := context.WithCancel(s.T.Context())
	var left sync.WaitGroup
	left.Go(func() { _, _ = s.Get(ctx, protocol, change...) })
	<-entered
	leave()
	left.Wait()
}

// nothingIsHeld waits until no request has a place or a turn.
func nothingIsHeld(t *testing.T, after string) {
	t.Helper()
	redistest.Eventually(t, "nothing is held after "+after, func() bool {
		return inUse(t, "ends-run") == 0 && bandwidthOf(t, "ends-slow").Open == 0
	})
}

// isSpent reports whether the only unit of a path is spent, and not only reserved.
func isSpent(s *sitetest.Served, path string) (spent bool) {
	s.T.Helper()
	redistest.Eventually(s.T, "the unit of "+path+" is settled", func() bool {
		a, err := s.Get(s.T.Context(), "HTTP/1.1", sitetest.OnPath(path), sitetest.Method(http.MethodOptions))
		if err != nil {
			return false
		}
		spent = a.Status == http.StatusTooManyRequests
		return !spent || a.Header.Get("Retry-After") != "1"
	})
	return spent
}

// However a request ends, by every protocol: what all options hold for it is free again, and its
// unit is spent where the status counts or nobody knows it.
func TestEveryHardEnd(t *testing.T) {
	s := everyOption(t)
	for _, c := range []struct {
		path          string
		spent, slowed bool
	}{
		{"/panics", false, false}, {"/panics-late", false, true}, {"/aborts", true, false}, {"/fails", true, false},
		{"/hints", false, false}, {"/silent", false, false}, {"/twice", true, false}, {"/taken", true, false},
		{"/cut", true, false}, {"/cut-late", false, true}, {"/events", false, true}, {"/waits", true, false},
	} {
		for _, protocol := range protocols {
			path, what := c.path+"/"+protocol, protocol+" "+c.path
			// Other protocols have no connection to take, which is an error 500.
			spent := c.spent && (c.path != "/taken" || protocol == "HTTP/1.1")
			before := bandwidthOf(t, "ends-slow").Bytes
			switch c.path {
			case "/events":
				leavesWith(s, protocol, 1, sitetest.OnPath(path))
			case "/waits":
				leavesBefore(s, protocol, sitetest.OnPath(path))
			default:
				_, _ = s.Get(t.Context(), protocol, sitetest.OnPath(path))
			}
			nothingIsHeld(t, what)
			if n := bandwidthOf(t, "ends-slow").Bytes - before; (n > 0) != c.slowed {
				t.Errorf("%s: %d bytes went by the bandwidth", what, n)
			}
			if got := isSpent(s, path); got != spent {
				t.Errorf("%s: its unit is spent: %v, want %v", what, got, spent)
			}
		}
	}
	if n := sitetest.DecidedAs(t, "ends-ban", "denied") + sitetest.DecidedAs(t, "ends-ban", "banned") + sitetest.DecidedAs(t, "ends-keep", "denied"); n != 0 {
		t.Errorf("%d requests were denied by zones that have room", n)
	}
}

// Two handlers with a zone that one request passes reserve a unit each, and settle each.
func TestTwoHandlersReserveAUnitEach(t *testing.T) {
	zone := "rate_limit {\n" + sitetest.ZoneBlock("ends-twice", "limit 4/30d\ncount_responses 401\nkey all") + "}\n"
	s := sitetest.StartCaddy(t, "", "@right header Password right\nroute {\n"+zone+zone+"respond @right ok\nrespond 401\n}")
	s.Answers("HTTP/1.1", 10, http.StatusOK, 10, sitetest.Header("Password", "right"))
	s.Answers("HTTP/1.1", 10, http.StatusUnauthorized, 2)
}

// A WebSocket is settled when it begins, by its 101, and has its place until it ends. What it sends
// is not slowed.
func TestAWebSocketWithEveryOption(t *testing.T) {
	s := everyOption(t)
	config, err := websocket.NewConfig(fmt.Sprintf("wss://localhost:%d/socket", s.Port), fmt.Sprintf("https://localhost:%d", s.Port))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.Port), s.Clients["HTTP/1.1"].Transport.(*http.Transport).TLSClientConfig)
	if err != nil {
		t.Fatal(err)
	}
	c, err := websocket.NewClient(config, conn)
	if err != nil {
		t.Fatal(err)
	}
	sent := bytes.Repeat([]byte("tide"), 40_000)
	got := make([]byte, len(sent))
	go func() { _, _ = c.Write(sent) }()
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("what comes back is not what was sent, %v", err)
	}
	if n := inUse(t, "ends-run"); n != 1 {
		t.Errorf("%d run beside an open WebSocket, want it", n)
	}
	if isSpent(s, "/socket") {
		t.Error("101 is not what counts, and the unit of an open WebSocket is spent")
	}
	if b := bandwidthOf(t, "ends-slow").Bytes; b > 100_000 {
		t.Errorf("%d bytes of a WebSocket were slowed", b)
	}
	_ = c.Close()
	nothingIsHeld(t, "a WebSocket")
}

// A gigabyte that a client sends passes all options, and nothing keeps it.
func TestAGigabyteIsUploadedWithEveryOption(t *testing.T) {
	s := everyOption(t)
	most, stop := uint64(0), make(chan struct{})
	var watching sync.WaitGroup
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before := m.HeapInuse
	watching.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapInuse)
			}
		}
	})
	a, err := s.Get(t.Context(), "HTTP/1.1", sitetest.OnPath("/uploads"), sitetest.Method(http.MethodPost), func(r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(io.LimitReader(zeros{}, 1<<30)), 1<<30
	})
	close(stop)
	watching.Wait()
	if err != nil || a.Body != fmt.Sprint(1<<30) {
		t.Errorf("%q bytes arrived, %v, want all", a.Body, err)
	}
	if most > before+128<<20 {
		t.Errorf("the heap grew from %d to %d bytes while a gigabyte passed", before, most)
	}
	nothingIsHeld(t, "an upload")
}

// A reload in the middle of requests with every option: each goes on, and what it holds is free at
// its end.
func TestAReloadInTheMiddleWithEveryOption(t *testing.T) {
	s := everyOption(t)
	var wg sync.WaitGroup
	for i, protocol := range protocols {
		wg.Go(func() {
			if a, err := s.Get(t.Context(), protocol, sitetest.OnPath(fmt.Sprint("/held/", i))); err != nil || a.Status != http.StatusOK {
				t.Errorf("%s: %d, %v over a reload, want 200", protocol, a.Status, err)
			}
		})
		<-entered
	}
	for range 2 {
		reload(s)
		if n := inUse(t, "ends-run"); n != int64(len(protocols)) {
			t.Errorf("after a reload %d run, want %d", n, len(protocols))
		}
	}
	for i := range protocols {
		var a sitetest.Reply
		var err error
		for range 10 { // a server that ends closes connections that it has accepted but not read
			if a, err = s.Get(t.Context(), "HTTP/1.1", sitetest.OnPath(fmt.Sprint("/held/", i))); err == nil {
				break
			}
		}
		if err != nil || a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "1" {
			t.Errorf("beside a request of before a reload: %d %v, %v, want its unit to be reserved", a.Status, a.Header, err)
		}
	}
	for range protocols {
		leave <- struct{}{}
	}
	wg.Wait()
	nothingIsHeld(t, "a reload")
	for i := range protocols {
		if isSpent(s, fmt.Sprint("/held/", i)) {
			t.Errorf("a unit of before a reload is spent by a 200")
		}
	}
}

// Clients that leave a queue give up their places, turns and units in the zones beside it as the
// pages say.
func TestLeavingAQueueWithEveryOption(t *testing.T) {
	s := sitetest.StartCaddy(t, "", "rate_limit {\n"+sitetest.ZoneBlock("ends-queue", "limit 10/30d\nalgorithm leaky_bucket\nqueue 5\nkey all")+
		sitetest.ZoneBlock("ends-guess", "limit 30/30d\ncount_responses 401\nkey all")+sitetest.ZoneBlock("ends-run", "concurrent 20\nkey all")+
		sitetest.ZoneBlock("ends-slow", "bandwidth 1GiB/s\nkey all")+"}\nrespond ok")
	s.Answers("HTTP/1.1", 1, http.StatusOK, 1)
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() { _, _ = s.Get(ctx, protocols[i%3]) })
	}
	redistest.Eventually(t, "five wait", func() bool { return sitetest.InQueue(t) == 5 })
	if n := inUse(t, "ends-run"); n != 5 {
		t.Errorf("%d run while five wait", n)
	}
	s.Answers("HTTP/1.1", 1, http.StatusTooManyRequests, 1)
	leave()
	wg.Wait()
	redistest.Eventually(t, "all have left", func() bool { return sitetest.InQueue(t) == 0 })
	nothingIsHeld(t, "a queue")
	// The first one got 200. Of the five nobody knows what the status was to be.
	if _, text := sitetest.Ask(http.MethodPost, "/rate_limit/explain", `{"zone":"ends-guess","key":"all"}`); !strings.Contains(text, `"used":5,`) {
		t.Errorf("after five that left: %s, want 5 used", text)
	}
}

// An error route that sends the request to the site again ends when the limit is spent: each round
// is a request, whose error counts with its status. One that comes back through the same zone is
// not counted again.
func TestALoopOfErrorRoutesEnds(t *testing.T) {
	for _, options := range []string{"limit 5/30d\ncount_responses 401", "limit 5/30d\ncount_responses 401\nalgorithm token_bucket", "limit 5/30d\ncount_responses 4xx\nban 1h after 1/30d"} {
		zone := "rate_limit {\n" + sitetest.ZoneBlock("loop", options+"\nkey all\nconcurrent 3") + "}\n"
		s := sitetest.StartCaddy(t, "", zone+"error 401\nhandle_errors 401 {\n"+zone+`reverse_proxy 127.0.0.1:{http.request.port} {
		header_up Host localhost:{http.request.port}
		transport http {
			tls_insecure_skip_verify
			tls_server_name localhost
		}
	}
}`)
		admitted := sitetest.DecidedAs(t, "loop", "admitted")
		a, err := s.Get(t.Context(), "HTTP/1.1")
		if err != nil || a.Status != http.StatusTooManyRequests {
			t.Errorf("%s: a loop is answered by %d, %v, want 429", options, a.Status, err)
		}
		if n := sitetest.DecidedAs(t, "loop", "admitted") - admitted; n != 5 {
			t.Errorf("%s: %d rounds were admitted, want 5", options, n)
		}
		redistest.Eventually(t, "no request runs", func() bool { return inUse(t, "loop") == 0 })
	}
}
