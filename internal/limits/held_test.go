package limits

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// held serves one request, and returns what it was told in order: the status with which the
// response began, and that the handler has ended.
func heldWith(t *testing.T, handler caddyhttp.HandlerFunc, change ...func(*http.Request) *http.Request) (told []string, panicked any, err error) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "http://example.com/login", nil)
	for _, f := range change {
		r = f(r)
	}
	h := new(Held)
	h.OnEnd(func() { told = append(told, "end") })
	h.OnBegin(func(r Response) { told = append(told, fmt.Sprintf("%d %s", r.Status, r.Header.Get("X-Login"))) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		err = h.Serve(httptest.NewRecorder(), r, handler)
	}()
	<-done
	return told, panicked, err
}

// A begun is the status with which a handler's response begins, 0 for none.
type begun struct {
	handler caddyhttp.HandlerFunc
	want    string
}

func (c begun) check(t *testing.T) {
	told, _, _ := heldWith(t, c.handler)
	if len(told) == 2 {
		told[0] = strings.TrimSpace(told[0])
	}
	if !slices.Equal(told, []string{c.want, "end"}) {
		t.Errorf("told %q, want %q and the end", told, c.want)
	}
}

func fails(err error) caddyhttp.HandlerFunc {
	return func(http.ResponseWriter, *http.Request) error { return err }
}

func TestWithWhichStatusAResponseBegins(t *testing.T) {
	for name, c := range map[string]begun{
		"a handler that never writes": {fails(nil), "200"},
		"one that writes twice": {func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusUnauthorized)
			w.WriteHeader(http.StatusOK)
			return nil
		}, "401"},
		"a body without a status": {func(w http.ResponseWriter, _ *http.Request) error {
			_, err := w.Write([]byte("hello"))
			w.WriteHeader(http.StatusUnauthorized)
			return err
		}, "200"},
		"a file": {func(w http.ResponseWriter, _ *http.Request) error {
			_, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader("hello"))
			return err
		}, "200"},
		"a header and a status": {func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("X-Login", "failed")
			w.WriteHeader(http.StatusForbidden)
			return nil
		}, "403 failed"},
		"hints before the response": {func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusProcessing)
			w.WriteHeader(http.StatusUnauthorized)
			return nil
		}, "401"},
		"an upgrade": {func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusSwitchingProtocols)
			return nil
		}, "101"},
		"a stream": {func(w http.ResponseWriter, _ *http.Request) error {
			return http.NewResponseController(w).Flush()
		}, "200"},
		"an old handler's stream": {func(w http.ResponseWriter, _ *http.Request) error {
			w.(http.Flusher).Flush()
			return nil
		}, "200"},
	} {
		t.Run(name, c.check)
	}
}

func TestWithWhichStatusAnErrorBegins(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for name, c := range map[string]begun{
		"an error":                  {fails(caddyhttp.Error(http.StatusUnauthorized, errors.New("no"))), "401"},
		"an error in another":       {fails(fmt.Errorf("login: %w", caddyhttp.Error(http.StatusUnauthorized, nil))), "401"},
		"an error without a status": {fails(errors.New("no")), "500"},
		"an error after the beginning": {func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusUnauthorized)
			return errors.New("no")
		}, "401"},
		"a client that has gone":   {fails(caddyhttp.Error(statusClientGone, context.Canceled)), "0"},
		"a 499 that is written":    {func(w http.ResponseWriter, _ *http.Request) error { w.WriteHeader(statusClientGone); return nil }, "0"},
		"an upstream that is cut":  {fails(caddyhttp.Error(http.StatusBadGateway, io.EOF)), "0"},
		"one that does not answer": {fails(caddyhttp.Error(http.StatusGatewayTimeout, errors.New("timeout"))), "0"},
		"one that is not there":    {fails(caddyhttp.Error(http.StatusBadGateway, refused)), "502"},
		"the end of its goroutine": {func(http.ResponseWriter, *http.Request) error { runtime.Goexit(); return nil }, "0"},
	} {
		t.Run(name, c.check)
	}
}

// What Caddy's proxy says of an upstream that refuses the connection unwraps to nothing.
func TestAnUpstreamOfCaddysProxyThatRefuses(t *testing.T) {
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	transport := new(reverseproxy.HTTPTransport)
	if err := transport.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	closed := httptest.NewServer(nil)
	closed.Close()
	begun{func(_ http.ResponseWriter, r *http.Request) error {
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, nil)
		r.URL.Host = closed.Listener.Addr().String()
		_, err := transport.RoundTrip(r) //nolint:bodyclose // there is none
		return caddyhttp.Error(http.StatusBadGateway, err)
	}, "502"}.check(t)
}

func TestAPanicGoesOn(t *testing.T) {
	for _, test := range []struct {
		value any
		want  string
	}{
		{"broken", "500 "},
		{http.ErrAbortHandler, "0 "},
	} {
		told, panicked, _ := heldWith(t, func(http.ResponseWriter, *http.Request) error { panic(test.value) })
		if panicked != test.value || !slices.Equal(told, []string{test.want, "end"}) {
			t.Errorf("a panic with %v: %v goes on and %q is told, want %q and the end", test.value, panicked, told, test.want)
		}
	}
	told, panicked, _ := heldWith(t, func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(http.StatusUnauthorized)
		panic(http.ErrAbortHandler)
	})
	if panicked != http.ErrAbortHandler || !slices.Equal(told, []string{"401 ", "end"}) {
		t.Errorf("a panic after the beginning: %v goes on and %q is told", panicked, told)
	}
}

// Nobody has told a client that has gone what the status was.
func TestAClientThatGoesFirst(t *testing.T) {
	for status := range map[int]bool{http.StatusOK: true, http.StatusUnauthorized: true, http.StatusInternalServerError: true} {
		ctx, leave := context.WithCancel(t.Context())
		told, _, _ := heldWith(t, func(w http.ResponseWriter, _ *http.Request) error {
			leave()
			w.WriteHeader(status)
			return nil
		}, func(r *http.Request) *http.Request { return r.WithContext(ctx) })
		if !slices.Equal(told, []string{"0 ", "end"}) {
			t.Errorf("a client that goes before %d: told %q", status, told)
		}
	}
}

// Each end is called, in the order in which things are given up, whatever the others do.
func TestAllEndsAreCalled(t *testing.T) {
	var told []int
	h := new(Held)
	for i := range 4 {
		h.OnEnd(func() {
			told = append(told, i)
			if i == 2 {
				panic("broken")
			}
		})
	}
	func() {
		defer func() { _ = recover() }()
		_ = h.Serve(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil), caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil }))
	}()
	if !slices.Equal(told, []int{3, 2, 1, 0}) {
		t.Errorf("ended %v, want each once, the last one first", told)
	}
}

// A connection that is taken over is settled at once, not when the handler returns at last.
func TestAHijackedConnectionIsSettledAtOnce(t *testing.T) {
	told := make(chan Response, 1)
	settled := make(chan bool, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := new(Held)
		h.OnBegin(func(r Response) { told <- r })
		_ = h.Serve(w, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
			conn, _, err := http.NewResponseController(w).Hijack()
			settled <- len(told) == 1
			if err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
				_ = conn.Close()
			}
			return err
		}))
	}))
	defer server.Close()
	response, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if r := <-told; !<-settled || r.Status != 0 || response.StatusCode != http.StatusNoContent {
		t.Errorf("a connection taken over was settled with %d, the client got %d", r.Status, response.StatusCode)
	}
}

// Nothing stands between a writer and the server's own.
func TestTheWriterKeepsWhatTheServerCan(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := new(Held)
		h.OnBegin(func(Response) {})
		_ = h.Serve(w, r, caddyhttp.HandlerFunc(func(inner http.ResponseWriter, _ *http.Request) error {
			rc := http.NewResponseController(inner)
			if err := rc.EnableFullDuplex(); err != nil {
				t.Error(err)
			}
			if inner.(interface{ Unwrap() http.ResponseWriter }).Unwrap() != w {
				t.Error("the writer does not unwrap to the server's")
			}
			return rc.Flush()
		}))
	}))
	defer server.Close()
	response, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
}

// Several things are held at once, and wrapped writers are the handler's.
func TestWrapComesOutsideOfTheBeginning(t *testing.T) {
	h := new(Held)
	var wrapped http.ResponseWriter
	h.Wrap(func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter {
		wrapped = &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}
		return wrapped
	})
	_ = h.Serve(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil), caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
		if w != wrapped {
			t.Error("the handler got another writer")
		}
		return nil
	}))
}
