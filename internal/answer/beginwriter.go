package answer

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// A BeginWriter notices the beginning of a response. It buffers nothing. Caddy's ResponseRecorder
// does not flush a header that no one has written yet, and does not notice who takes the connection
// over.
type BeginWriter struct {
	caddyhttp.ResponseWriterWrapper
	begins func(status int) // nil once it was called
	// Last is called once before the last byte of a body is written whose length the header says:
	// its client may act on it before the handler has returned. Nil for nobody.
	Last func()
	// Written is how many bytes of the body have been written.
	Written int64
	readers []io.Writer
}

// NewBeginWriter returns a writer that calls begins once, before anything of the response is sent:
// with its status, which is 101, or 200 and above, or with 0 where somebody else takes the
// connection over.
func NewBeginWriter(w http.ResponseWriter, begins func(status int)) *BeginWriter {
	return &BeginWriter{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}, begins: begins}
}

// Read has a reader read what of the body is written from now on. It keeps nothing and never fails.
func (w *BeginWriter) Read(reader io.Writer) { w.readers = append(w.readers, reader) }

// Begin notes the beginning of the response, of which only the first one counts.
func (w *BeginWriter) Begin(status int) {
	if begins := w.begins; begins != nil {
		w.begins = nil
		begins(status)
	}
}

// WriteHeader begins the response, unless the status is only informational. 101 is the last one on
// its connection.
func (w *BeginWriter) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.Begin(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write begins the response.
func (w *BeginWriter) Write(b []byte) (int, error) {
	w.Begin(http.StatusOK)
	w.noteLast(len(b))
	n, err := w.ResponseWriter.Write(b)
	w.Written += int64(n)
	for _, reader := range w.readers {
		_, _ = reader.Write(b[:n])
	}
	return n, err
}

// ReadFrom begins the response. Where the server can, it sends a file without copying it, unless
// somebody reads the body.
func (w *BeginWriter) ReadFrom(r io.Reader) (int64, error) {
	w.Begin(http.StatusOK)
	if len(w.readers) > 0 {
		return io.Copy(struct{ io.Writer }{w}, r)
	}
	n, err := w.ResponseWriterWrapper.ReadFrom(r)
	w.Written += n
	return n, err
}

// FlushError begins the response.
func (w *BeginWriter) FlushError() error {
	w.Begin(http.StatusOK)
	w.noteLast(0)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// noteLast calls Last if the body ends with the next n bytes.
func (w *BeginWriter) noteLast(n int) {
	if w.Last == nil {
		return
	}
	size, err := strconv.ParseInt(w.Header().Get("Content-Length"), 10, 64)
	if err == nil && w.Written+int64(n) >= size {
		w.Last()
		w.Last = nil
	}
}

// Flush is FlushError for handlers that look for http.Flusher.
func (w *BeginWriter) Flush() { _ = w.FlushError() }

// Hijack hands the connection over. What is written there is not known here.
func (w *BeginWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, brw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.Begin(0)
	}
	return conn, brw, err
}

// Interface guards.
var (
	_ http.Flusher  = (*BeginWriter)(nil)
	_ http.Hijacker = (*BeginWriter)(nil)
	_ http.Pusher   = (*BeginWriter)(nil)
	_ io.ReaderFrom = (*BeginWriter)(nil)
)
