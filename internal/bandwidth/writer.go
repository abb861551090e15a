package bandwidth

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A Writer is a response whose body waits for its turns. It flushes, and can be hijacked and
// unwrapped, as what it wraps: a hijacked or upgraded connection is not slowed.
type Writer struct {
	caddyhttp.ResponseWriterWrapper

	name     keys.Key
	response *Response
	ctx      context.Context
	begun    bool // the final status is written
	free     bool // there is no body, or it is no response any more
}

// Throttle returns a writer for the response to a request of a key, and whether the key shares its
// rate with others as there are too many. It is nil where nothing is to be slowed: there is no
// body, the connection becomes a tunnel, or the response is slowed by this key already. Close must
// be called at the end of the response.
func (z *Zone) Throttle(w http.ResponseWriter, r *http.Request, name keys.Key) (t *Writer, overflow bool) {
	if r.Method == http.MethodHead || r.Method == http.MethodConnect || z.throttles(w, name) {
		return nil, false
	}
	t = &Writer{name: name, ctx: r.Context()}
	t.ResponseWriter = w
	t.response, overflow = z.Open(name)
	return t, overflow
}

// throttles reports whether a writer, or one that it wraps, is slowed by a key already: a request
// may pass two handlers with the same zone.
func (z *Zone) throttles(w http.ResponseWriter, name keys.Key) bool {
	for {
		if t, ok := w.(*Writer); ok && t.response.zone == z && t.name == name {
			return true
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = u.Unwrap()
	}
}

// Close ends the response.
func (w *Writer) Close() { w.response.Close() }

// WriteHeader notes whether there will be a body. Informational responses other than the one that
// ends HTTP come before the one that counts.
func (w *Writer) WriteHeader(status int) {
	if !w.begun && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.begun = true
		w.free = status == http.StatusSwitchingProtocols || status == http.StatusNoContent || status == http.StatusNotModified
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write sends bytes of the body as turns come.
func (w *Writer) Write(b []byte) (written int, err error) {
	if w.free || len(b) == 0 {
		return w.ResponseWriter.Write(b)
	}
	w.begun = true
	for len(b) > 0 && err == nil {
		var granted, n int
		if granted, err = w.response.Take(w.ctx, len(b)); err != nil {
			return written, err
		}
		n, err = w.ResponseWriter.Write(b[:granted])
		w.response.sent(n)
		if n < granted {
			w.response.refund(granted - n)
			if err == nil {
				err = io.ErrShortWrite
			}
		}
		written, b = written+n, b[n:]
	}
	return written, err
}

// buffers are for bodies that are read from somewhere.
var buffers = sync.Pool{New: func() any { return new([maxTurn]byte) }}

// ReadFrom sends what a reader has. It copies: the system can't send a file at a rate.
func (w *Writer) ReadFrom(r io.Reader) (n int64, err error) {
	if w.free {
		return w.ResponseWriterWrapper.ReadFrom(r)
	}
	buffer := buffers.Get().(*[maxTurn]byte)
	defer buffers.Put(buffer)
	return io.CopyBuffer(writeOnly{w}, r, buffer[:])
}

// writeOnly hides ReadFrom.
type writeOnly struct{ io.Writer }

// Flush sends what is buffered, if what is wrapped can do so.
func (w *Writer) Flush() { _ = w.FlushError() }

// FlushError is Flush with its error.
func (w *Writer) FlushError() error { return http.NewResponseController(w.ResponseWriter).Flush() }

// Hijack hands the connection over, if what is wrapped can do so.
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.free = w.free || err == nil
	return conn, rw, err
}

// Interface guards
var (
	_ http.Flusher  = (*Writer)(nil)
	_ http.Hijacker = (*Writer)(nil)
	_ io.ReaderFrom = (*Writer)(nil)
)
