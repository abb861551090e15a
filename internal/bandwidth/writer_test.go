package bandwidth

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

// body is what a handler writes in the tests: three seconds at 10000 bytes a second.
var (
	body = bytes.Repeat([]byte("0123456789"), 3000)
	same = string(body)
)

// handle calls a handler with a response that is slowed, and returns how long that took and what
// the client got.
func handle(t *testing.T, method string, h http.HandlerFunc) (took time.Duration, got *peer) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		z := NewZone("z", 10_000, 10)
		start := time.Now()
		r := httptest.NewRequest(method, "/", nil)
		got = &peer{header: http.Header{}}
		if w, _ := z.Throttle(got, r, keys.Key{}); w != nil {
			defer w.Close()
			h(w, r)
		} else {
			h(got, r)
		}
		took = time.Since(start)
		if s := z.Status(); took > 0 && s.Bytes != int64(got.Body.Len()) {
			t.Errorf("%d bytes were counted, and %d were sent", s.Bytes, got.Body.Len())
		}
	})
	return took, got
}

// peer is a client that takes whatever comes, also what no response may have.
type peer struct {
	header http.Header
	Body   bytes.Buffer
}

func (p *peer) Header() http.Header         { return p.header }
func (p *peer) WriteHeader(int)             {}
func (p *peer) Write(b []byte) (int, error) { return p.Body.Write(b) }

// A response is one with body.
type response struct {
	name, method string
	h            http.HandlerFunc
}

func (c response) check(t *testing.T, slowed bool) {
	t.Helper()
	took, got := handle(t, c.method, c.h)
	if slow := took > 2500*time.Millisecond && took < 3500*time.Millisecond; slow != slowed || !slow && took > 0 {
		t.Errorf("%s: 30000 bytes at 10000 a second took %v, slowed want %t", c.name, took, slowed)
	}
	if !bytes.Equal(got.Body.Bytes(), body) {
		t.Errorf("%s: %d bytes arrived, or others", c.name, got.Body.Len())
	}
}

func write(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }

func TestWriterSlowsBodies(t *testing.T) {
	for _, c := range []response{
		{"write", "GET", write},
		{"post", "POST", write},
		{"small writes", "GET", func(w http.ResponseWriter, _ *http.Request) {
			for at := 0; at < len(body); at += 100 {
				_, _ = w.Write(body[at : at+100])
			}
		}},
		{"copy", "GET", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, bytes.NewReader(body)) }},
		{"copy of what only reads", "GET", func(w http.ResponseWriter, _ *http.Request) {
			n, err := io.Copy(w, io.LimitReader(bytes.NewReader(body), int64(len(body))))
			if n != int64(len(body)) || err != nil {
				panic(fmt.Sprint(n, err))
			}
		}},
		{"content", "GET", func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "body.txt", time.Time{}, bytes.NewReader(body))
		}},
		{"text", "GET", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, same) }},
		{"status of an error", "GET", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			write(w, r)
		}},
		{"a status that comes too late", "GET", func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(body[:10])
			w.WriteHeader(http.StatusSwitchingProtocols)
			_, _ = w.Write(body[10:])
		}},
		{"a second status", "GET", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			w.WriteHeader(http.StatusSwitchingProtocols)
			write(w, r)
		}},
	} {
		c.check(t, true)
	}
}

func TestWriterSlowsNothingElse(t *testing.T) {
	for _, c := range []response{
		{"head", "HEAD", write},
		{"tunnel", "CONNECT", write},
		{"upgraded", "GET", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusSwitchingProtocols)
			write(w, r)
		}},
		{"upgraded, copy", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusSwitchingProtocols)
			_, _ = w.(io.ReaderFrom).ReadFrom(bytes.NewReader(body))
		}},
		{"not modified", "GET", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusNotModified)
			write(w, r)
		}},
		{"no content", "GET", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			write(w, r)
		}},
	} {
		c.check(t, false)
	}
}

// A response that passes two handlers with one zone is slowed once by its key, and by each other
// key.
func TestThrottledOnceByAKey(t *testing.T) {
	z, other := NewZone("z", 1, 1), NewZone("other", 1, 1)
	r := httptest.NewRequest("GET", "/", nil)
	w, _ := z.Throttle(httptest.NewRecorder(), r, keys.Key{A: 1})
	if again, _ := z.Throttle(struct{ http.ResponseWriter }{w}, r, keys.Key{A: 1}); again == nil {
		t.Error("what can't be unwrapped is taken for slowed") // it can't be known
	}
	second, _ := z.Throttle(w, r, keys.Key{A: 2})
	third, _ := other.Throttle(second, r, keys.Key{A: 1})
	if second == nil || third == nil {
		t.Fatal("another key or zone doesn't slow a response")
	}
	for _, name := range []keys.Key{{A: 1}, {A: 2}} {
		if again, _ := z.Throttle(third, r, name); again != nil {
			t.Errorf("key %v slows a response twice", name)
		}
	}
}

// What a write could not send is refunded, and its error is the response's.
func TestFailedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := NewZone("z", 8000, 10)
		failed := errors.New("failed")
		for _, c := range []struct {
			err, want error
		}{{failed, failed}, {nil, io.ErrShortWrite}} {
			w, _ := z.Throttle(&shortWriter{ResponseRecorder: httptest.NewRecorder(), err: c.err}, httptest.NewRequest("GET", "/", nil), keys.Key{})
			before := z.Status()
			n, err := w.Write(body)
			if n != 7 || err != c.want {
				t.Errorf("Write = %d, %v, want 7 and %v", n, err, c.want)
			}
			w.Close()
			if s := z.Status(); s.Bytes-before.Bytes != 7 || s.Waited != before.Waited {
				t.Errorf("status %+v, before %+v", s, before)
			}
			time.Sleep(time.Millisecond) // 7 bytes are paid for
		}
	})
}

// shortWriter takes 7 bytes of each write.
type shortWriter struct {
	*httptest.ResponseRecorder
	err error
}

func (w *shortWriter) Write(b []byte) (int, error) {
	n, _ := w.ResponseRecorder.Write(b[:min(7, len(b))])
	return n, w.err
}

func TestWriteEndsWithTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := NewZone("z", 10_000, 10)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		w, _ := z.Throttle(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx), keys.Key{})
		defer w.Close()
		if n, err := w.Write(body); !errors.Is(err, context.DeadlineExceeded) || !within(float64(n), 10_000, 0.2) || time.Since(start) != time.Second {
			t.Errorf("Write = %d, %v after %v", n, err, time.Since(start))
		}
	})
}

// ablest are handlers that do with a response what a server lets them.
var ablest = map[string]http.HandlerFunc{
	"/flush": func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	},
	"/hijack": func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nraw")
		_ = rw.Flush()
		if _, err := w.Write([]byte("late")); err != http.ErrHijacked {
			panic(fmt.Sprint("after Hijack: ", err))
		}
	},
	"/hints": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		if w.(*Writer).begun {
			panic("an informational response passes for the one that counts")
		}
		_, _ = w.Write(body)
	},
	"/trailer": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = w.Write(body)
		w.Header().Set("X-Sum", "30000")
	},
	"/deadline": func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0)); err != nil {
			panic(err)
		}
		_, _ = w.Write(body)
	},
}

// With a real server: what a handler can do with a response it can still do.
func TestWriterOnAServer(t *testing.T) {
	z := NewZone("z", 1<<30, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t, _ := z.Throttle(w, r, keys.Key{})
		defer t.Close()
		ablest[r.URL.Path](t, r)
	}))
	defer server.Close()

	ctx, cancel := context.WithCancel(t.Context())
	first, err := do(ctx, server.URL+"/flush")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(io.LimitReader(first.Body, 5)); string(b) != "first" {
		t.Errorf("flush: %q, %v", b, err)
	}
	cancel()

	if r, err := do(t.Context(), server.URL+"/hijack"); err != nil || text(r) != "raw" {
		t.Errorf("hijack: %v, %v", r, err)
	}
	if r, err := do(t.Context(), server.URL+"/hints"); err != nil || r.StatusCode != http.StatusOK || text(r) != string(body) {
		t.Errorf("early hints: %v, %v", r, err)
	}
	if r, err := do(t.Context(), server.URL+"/trailer"); err != nil || text(r) != string(body) || r.Trailer.Get("X-Sum") != "30000" {
		t.Errorf("trailer: %v, %v", r, err)
	}
	if r, err := do(t.Context(), server.URL+"/deadline"); err == nil && text(r) == string(body) {
		t.Error("a response came whole after its deadline")
	}
}

func do(ctx context.Context, url string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(r)
}

// text reads all of a body.
func text(r *http.Response) string {
	var s strings.Builder
	_, _ = io.Copy(&s, r.Body)
	return s.String()
}

// What can't be flushed or hijacked says so.
func TestWriterOfLess(t *testing.T) {
	z := NewZone("z", 1<<30, 10)
	w, _ := z.Throttle(struct{ http.ResponseWriter }{httptest.NewRecorder()}, httptest.NewRequest("GET", "/", nil), keys.Key{})
	defer w.Close()
	var conn net.Conn
	var rw *bufio.ReadWriter
	conn, rw, err := w.Hijack()
	if conn != nil || rw != nil || !errors.Is(err, http.ErrNotSupported) || !errors.Is(w.FlushError(), http.ErrNotSupported) {
		t.Errorf("Hijack = %v, %v, %v", conn, rw, err)
	}
}
