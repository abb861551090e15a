// no clock: no benchmark asks for what a window admits.

package ratelimit_test

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// benchmarkServeHTTP sends requests from 10,000 addresses through one zone.
func benchmarkServeHTTP(b *testing.B, options string) {
	benchmarkHandler(b, inServer(b, "headers off\n"+sitetest.ZoneBlock(b.Name(), options)))
}

// inServer provisions a handler that knows what one in a route of a server knows: no request comes
// to it by an error route, and none goes to one.
func inServer(b *testing.B, block string) *ratelimit.Handler {
	h := sitetest.NewSite(b, &ratelimit.App{}, block).Handler
	for _, z := range h.Zones() {
		z.AfterErrors = false
	}
	return h.WithoutErrorRoutes()
}

func benchmarkHandler(b *testing.B, h caddyhttp.MiddlewareHandler) {
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		repl := caddy.NewReplacer()
		r = caddyhttp.PrepareRequest(r, repl, httptest.NewRecorder(), &caddyhttp.Server{})
		fresh := *repl
		var ips [10_000]string
		for i := range ips {
			ips[i] = net.IP(binary.BigEndian.AppendUint32(nil, 0x0a000000+uint32(i))).String()
		}
		w := sitetest.Sink{}
		vars := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
		boxed := make([]any, len(ips))
		for i := range ips {
			boxed[i] = ips[i]
		}
		for i := 0; pb.Next(); i++ {
			vars[caddyhttp.ClientIPVarKey] = boxed[i%len(ips)]
			clear(w)
			*repl = fresh // as for a request of its own
			_ = h.ServeHTTP(w, r, next)
		}
	})
}

func BenchmarkServeHTTPAdmitted(b *testing.B) {
	benchmarkServeHTTP(b, "limit 1000000000/1m\nkey {client_ip}")
}

// BenchmarkServeHTTPAdmittedDynamic is a limit that comes with the request.
func BenchmarkServeHTTPAdmittedDynamic(b *testing.B) {
	benchmarkServeHTTP(b, "limit {http.request.header.X-Plan}/1m\nlimit_default 1000000000/1m\nkey {client_ip}")
}

func BenchmarkServeHTTPAdmittedDraft(b *testing.B) {
	benchmarkHandler(b, inServer(b, "headers ietf\n"+sitetest.ZoneBlock(b.Name(), "limit 1000000000/1m\nkey {client_ip}")))
}

// nothing is what a request takes without the handler: what the benchmark itself does.
type nothing struct{}

func (nothing) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return next.ServeHTTP(w, r)
}

func BenchmarkServeHTTPNextAlone(b *testing.B) { benchmarkHandler(b, nothing{}) }

func BenchmarkServeHTTPDenied(b *testing.B) { benchmarkServeHTTP(b, "limit 0/1m\nkey {client_ip}") }

func BenchmarkServeHTTPDeniedDraft(b *testing.B) {
	benchmarkHandler(b, inServer(b, "headers ietf\n"+sitetest.ZoneBlock(b.Name(), "limit 0/1m\nkey {client_ip}")))
}

// BenchmarkAnswer is a request from a connection that costs nothing, through Go's and Caddy's
// servers to one of these handlers and back: the "ok" of a static response; a denial; and what a
// handler that answers the same costs at least, which is a static response with these header fields
// and this body, and one that had all of them ready.
func BenchmarkAnswer(b *testing.B) {
	const denies = `{"handler": "rate_limit", "headers": ["ietf"], "rate_limits": {"answer": {"limits": [{"max_events": 0, "window": "1h"}]}}}`
	recorded := httptest.NewRecorder()
	server(b, denies).ServeHTTP(recorded, httptest.NewRequest(http.MethodGet, "/", nil))
	recorded.Header().Del("Server") // which the server adds
	same, err := json.Marshal(ready{recorded.Code, recorded.Header(), recorded.Body.String()})
	if err != nil {
		b.Fatal(err)
	}
	answer := string(same[1:])
	for _, handler := range []struct{ name, json string }{
		{"ok", `{"handler": "static_response", "body": "ok"}`},
		{"denied", denies},
		{"denied, headers off", strings.Replace(denies, "ietf", "off", 1)},
		{"the same by Caddy", `{"handler": "static_response", ` + answer},
		{"the same, ready", `{"handler": "test_ready", ` + answer},
	} {
		b.Run(handler.name, func(b *testing.B) {
			front := &http.Server{Handler: server(b, handler.json)}
			b.ReportAllocs()
			b.ResetTimer()
			c := &tape{left: b.N, closed: make(chan struct{})}
			_ = front.Serve(&oneConn{c: c})
			if <-c.closed; c.written < b.N {
				b.Errorf("%d answers of %d", c.written, b.N)
			}
		})
	}
}

// server is one of Caddy's with a handler. It doesn't listen.
func server(b *testing.B, handler string) http.Handler {
	ctx, err := caddy.ProvisionContext(&caddy.Config{AppsRaw: caddy.ModuleMap{
		"http": json.RawMessage(`{"servers": {"s": {"automatic_https": {"disable": true}, "routes": [{"handle": [` + handler + `]}]}}}`),
	}})
	if err != nil {
		b.Fatal(err)
	}
	app, err := ctx.App("http")
	if err != nil {
		b.Fatal(err)
	}
	return app.(*caddyhttp.App).Servers["s"]
}

func init() { caddy.RegisterModule(ready{}) }

// ready is a handler whose answer is made at load.
type ready struct {
	Status int         `json:"status_code"`
	Header http.Header `json:"headers"`
	Body   string      `json:"body"`
}

func (ready) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.test_ready", New: func() caddy.Module { return new(ready) }}
}

func (a *ready) ServeHTTP(w http.ResponseWriter, _ *http.Request, _ caddyhttp.Handler) error {
	maps.Copy(w.Header(), a.Header)
	w.WriteHeader(a.Status)
	_, err := io.WriteString(w, a.Body)
	return err
}

// tape is a connection from which the same request comes a number of times.
type tape struct {
	net.Conn
	left, written int
	rest          string
	closed        chan struct{}
}

func (c *tape) Read(p []byte) (int, error) {
	if c.rest == "" {
		if c.left == 0 {
			return 0, io.EOF
		}
		c.left--
		c.rest = "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *tape) Write(p []byte) (int, error) { c.written++; return len(p), nil }

func (c *tape) Close() error { close(c.closed); return nil }

func (*tape) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

func (*tape) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1234} }

func (*tape) SetReadDeadline(time.Time) error { return nil }

func (*tape) SetWriteDeadline(time.Time) error { return nil }

func (*tape) SetDeadline(time.Time) error { return nil }

// oneConn is a listener that has one connection to give.
type oneConn struct {
	net.Listener
	c net.Conn
}

func (l *oneConn) Accept() (c net.Conn, err error) {
	if c, l.c = l.c, nil; c == nil {
		err = io.EOF
	}
	return c, err
}

func (*oneConn) Close() error { return nil }

func (*oneConn) Addr() net.Addr { return &net.TCPAddr{} }
