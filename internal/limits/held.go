// What a request holds beyond its decision: until its response begins, is about to end, or its
// handler has returned. A request that holds nothing has no part in it.
//
// It knows nothing of zones and counters. Who holds something says what is to be done when.

package limits

import (
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-tide/ratelimit/internal/answer"
)

// A Held is what one request holds. The zero value holds nothing. It is not safe for concurrent
// use, and is used once.
type Held struct {
	begins []func(Response)
	ends   []func()
	lasts  []func()
	wraps  []func(http.ResponseWriter, *http.Request) http.ResponseWriter

	body *answer.BeginWriter
	sent int64 // bytes, where somebody else has sent the response
	// complete is set once the handler has returned without an error, to a client that is there.
	complete bool
}

// written is how many bytes of a body the handler has sent.
func (h *Held) written() int64 {
	if h.body == nil {
		return h.sent
	}
	return h.body.Written
}

// Read has a reader read the body of the response, which begins.
func (h *Held) Read(reader io.Writer) {
	if h.body != nil {
		h.body.Read(reader)
	}
}

// A Response is how a response begins.
type Response struct {
	// Status is 101, or 200 and above. It is 0 where nobody knows which one it was to be: the
	// client or the upstream has gone first, the handler has aborted, or it has taken the
	// connection over.
	Status int
	// Header is the header as it is sent. It is not kept.
	Header http.Header
	// At is when that was, in nanoseconds since the Unix epoch; 0 is now.
	At int64
	// Size is the length of the body, where somebody else has sent it.
	Size int64
	// Request is what it answers, nil where nobody knows. Errored is set where the handler has
	// returned an error instead, and others answer.
	Request *http.Request
	Errored bool
}

// OnBegin has f called once when the response begins, before anything of it is sent; at the latest
// when the handler has returned or panicked.
func (h *Held) OnBegin(f func(Response)) { h.begins = append(h.begins, f) }

// OnEnd has f called once when the handler has returned or panicked, the last one first.
func (h *Held) OnEnd(f func()) { h.ends = append(h.ends, f) }

// OnLast has f called once before the last byte of the response is sent, where its header says how
// long it is, and at the latest after what is to be called OnEnd.
func (h *Held) OnLast(f func()) { h.lasts = append(h.lasts, f) }

// Wrap has f wrap the writer that the handler gets. What it returns must keep to what Caddy's
// handlers expect: Unwrap, FlushError, Hijack, ReadFrom.
func (h *Held) Wrap(f func(http.ResponseWriter, *http.Request) http.ResponseWriter) {
	h.wraps = append(h.wraps, f)
}

// Serve has next handle the request, and gives up what is held at its time. A panic goes on.
func (h *Held) Serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	defer h.end()
	if len(h.lasts) > 0 {
		last := answer.NewBeginWriter(w, nil)
		last.Last, w = h.last, last
	}
	for _, wrap := range h.wraps {
		w = wrap(w, r)
	}
	if len(h.begins) == 0 {
		return next.ServeHTTP(w, r)
	}
	return h.serve(w, r, next)
}

// serve is Serve with a writer that notices the beginning of the response.
func (h *Held) serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) (err error) {
	rw := answer.NewBeginWriter(w, func(status int) {
		if status == statusClientGone || r.Context().Err() != nil {
			status = 0 // a client that has gone before does not learn of the status
		}
		h.begin(Response{Status: status, Header: w.Header(), Request: r, Errored: err != nil})
	})
	h.body = rw
	returned := false
	defer func() {
		if returned {
			h.complete = err == nil && r.Context().Err() == nil
			rw.Begin(statusOf(err))
			return
		}
		p := recover() // nil for a goroutine that ends itself
		if p != nil && p != http.ErrAbortHandler {
			rw.Begin(http.StatusInternalServerError)
		}
		rw.Begin(0)
		if p != nil {
			panic(p)
		}
	}()
	err = next.ServeHTTP(rw, r)
	returned = true
	return err
}

// Replay says how a response began that somebody else has sent, and gives up all that is held.
func (h *Held) Replay(r Response) {
	h.sent, h.complete = r.Size, true
	h.begin(r)
	h.end()
}

// begin calls all that wait for the response, once.
func (h *Held) begin(r Response) {
	begins := h.begins
	h.begins = nil
	for _, f := range begins {
		f(r)
	}
}

// last calls all that wait for the last byte, once.
func (h *Held) last() {
	lasts := h.lasts
	h.lasts = nil
	for _, f := range lasts {
		f()
	}
}

// end calls all that wait for the end, each even if another one panics.
func (h *Held) end() {
	defer h.last()
	for i := range h.ends {
		defer h.ends[i]()
	}
	h.ends = nil
}

// statusClientGone is what Caddy's reverse_proxy answers for a client that has gone.
const statusClientGone = 499

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
