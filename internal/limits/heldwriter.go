package limits

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// A writer notices the beginning of a response. It buffers nothing. Caddy's ResponseRecorder does
// not flush a header that no one has written yet, and does not notice who takes the connection
// over.
type writer struct {
	*caddyhttp.ResponseWriterWrapper

	held    *Held
	request *http.Request
	begun   bool
}

// statusClientGone is what Caddy's reverse_proxy answers for a client that has gone.
const statusClientGone = 499

// begin notes the beginning of a response, of which only the first one counts. A client that has
// gone before does not learn of the status.
func (w *writer) begin(status int) {
	if w.begun {
		return
	}
	w.begun = true
	if status == statusClientGone || w.request.Context().Err() != nil {
		status = 0
	}
	w.held.begin(Response{Status: status, Header: w.Header()})
}

// WriteHeader begins the response, unless the status is only informational. 101 is the last one on
// its connection.
func (w *writer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.begin(status)
	}
	w.ResponseWriterWrapper.WriteHeader(status)
}

// Write begins the response.
func (w *writer) Write(b []byte) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseWriterWrapper.Write(b)
}

// ReadFrom begins the response. Where the server can, it sends a file without copying it.
func (w *writer) ReadFrom(r io.Reader) (int64, error) {
	w.begin(http.StatusOK)
	return w.ResponseWriterWrapper.ReadFrom(r)
}

// FlushError begins the response.
func (w *writer) FlushError() error {
	w.begin(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush is FlushError for handlers that look for http.Flusher.
func (w *writer) Flush() { _ = w.FlushError() }

// Hijack hands the connection over. What is written there is not known here.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, brw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.begin(0)
	}
	return conn, brw, err
}

// statusOf returns the status that the server answers an error with, 0 where it stands for one that
// nobody knows: the upstream was asked and did not answer, or the client has gone.
func statusOf(err error) int {
	if err == nil {
		return http.StatusOK
	}
	var routed caddyhttp.HandlerError
	if !errors.As(err, &routed) || routed.StatusCode == 0 {
		return http.StatusInternalServerError
	}
	if routed.StatusCode == http.StatusBadGateway || routed.StatusCode == http.StatusGatewayTimeout {
		if !isUnasked(routed.Err) {
			return 0
		}
	}
	return routed.StatusCode
}

// isUnasked reports whether an error of a proxy says that no upstream has got the request.
func isUnasked(err error) bool {
	var refused reverseproxy.DialError // which does not unwrap to what it holds
	var dial *net.OpError
	return err == nil || errors.As(err, &refused) || errors.As(err, &dial) && dial.Op == "dial"
}

// Interface guards.
var (
	_ http.Flusher  = (*writer)(nil)
	_ http.Hijacker = (*writer)(nil)
	_ http.Pusher   = (*writer)(nil)
	_ io.ReaderFrom = (*writer)(nil)
)
