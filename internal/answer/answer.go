// Package answer tells the world what was decided for a request: the client by headers and by the
// body of a denial, other handlers by placeholders, Caddy by events, and the operator by the log of
// denials.
//
// It knows no algorithms and no counters. What it gets is one Result a limit.
package answer

import (
	"errors"
	"math"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// Options say how a handler answers.
type Options struct {
	// Status is the status of a response to a denied request.
	Status int
	// Message is the body of such a response, "" for problem details (RFC 9457).
	Message string
	// Jitter adds up to this share to Retry-After at random, 0 to 1.
	Jitter float64
	// Headers are the sets of informational headers to send, of those that tell of a limit by its
	// Policy.
	Headers HeaderSets
	// NoErrorRoutes is set where the server of all requests has no error routes.
	NoErrorRoutes bool
	// Shadow is set where a zone may be in shadow mode: then {http.rate_limit.would_deny.*} has a
	// value for each request, if only an empty one.
	Shadow bool
	// Events gets an event for each request that is denied or would be, unless it is nil.
	Events *Events
}

// A Responder answers requests by a handler's options. It is not changed after NewResponder and is
// safe for concurrent use.
type Responder struct {
	Options
	message *message // nil for problem details

	contentType string

	replies [Barred + 1]reply // by reason
}

// A reply is what a denial for one reason is answered with.
type reply struct {
	status int
	// err is for error routes. caddyhttp.Error would look up the caller for each request.
	err error
	// problem is the problem details up to the wait; all of them where fixed is set: such a reply
	// has no Retry-After and RateLimit headers, as they would tell of a count that is not the
	// client's own, or that doesn't decide.
	problem []byte
	fixed   bool
	// code and text end a call of gRPC.
	code, text string
}

// NewResponder prepares what does not differ from request to request.
func NewResponder(o Options) *Responder {
	contentType := "application/problem+json"
	var m *message
	if o.Message != "" {
		contentType = "text/plain; charset=utf-8"
		if m = compileMessage(o.Message); m.json {
			contentType = "application/json"
		}
	}
	exceeded := reply{
		status: o.Status, err: routed(o.Status, "rate limit exceeded"), problem: problem(quotaExceeded, o.Status),
		code: grpcResourceExhausted, text: "rate limit exceeded",
	}
	all := &Responder{Options: o, message: m, contentType: contentType}
	for i := range all.replies {
		all.replies[i] = exceeded
	}
	all.replies[Banned].err = routed(o.Status, "banned for a while, as a rate limit was exceeded too often")
	all.replies[Banned].problem = problem(abnormalUsage, o.Status)
	all.replies[Unavailable] = reply{
		status: http.StatusServiceUnavailable, err: routed(http.StatusServiceUnavailable, "rate limit unavailable"),
		problem: problem(reducedCapacity, http.StatusServiceUnavailable), code: grpcUnavailable, text: "rate limit unavailable",
	}
	all.replies[TooLarge].err = routed(o.Status, "the request costs more than the rate limit admits at once")
	all.replies[TooEarly] = reply{
		status: http.StatusTooEarly, err: routed(http.StatusTooEarly, "early data, which proves no address: it is to come again after the handshake"),
		problem: tooEarlyProblem, fixed: true,
	}
	all.replies[Barred] = reply{
		status: http.StatusForbidden, err: routed(http.StatusForbidden, "all requests of this key are denied, as an operator has set at run time"),
		problem: barredProblem, fixed: true, code: grpcPermissionDenied, text: "these calls are not admitted for now",
	}
	return all
}

func routed(status int, text string) error {
	return caddyhttp.HandlerError{StatusCode: status, Err: errors.New(text)}
}

// Admit tells the client and the handlers after this one how the limits stand at now (nanoseconds
// since the Unix epoch). It keeps neither f nor results.
func (o *Responder) Admit(w http.ResponseWriter, r *http.Request, f *Fields, results []Result, now int64) {
	f.writeHeaders(w.Header(), o.Headers, results, now)
	if len(results) > 0 || o.Shadow {
		setPlaceholders(reqkey.ReplacerOf(r), "", 0, results)
	}
}

// A Denial is what Deny answers.
type Denial struct {
	Reason Reason
	// Zone is the one with the longest wait, Wait that wait.
	Zone string
	Wait time.Duration
	// Results are what the limits decided, also those that admitted. They are not kept.
	Results []Result
	// Who is the key that was denied.
	Who Who
	// Now is when they did, in nanoseconds since the Unix epoch.
	Now int64
	// Fields is what the response is put together in, nil for something new.
	Fields *Fields
	// Begins is set where a ban begins with this request.
	Begins bool
	// Cost is what the request costs in that zone, 0 where all of its requests cost one unit, and
	// Most what is ever admitted at once.
	Cost, Most int64
}

// A ShadowDenial is a denial by zones in shadow mode, which denied nobody: the one with the longest
// wait, and that wait. The zero value is none.
type ShadowDenial struct {
	Zone string
	Who  Who
	Wait time.Duration
}

// Note takes in the denial by a zone, which is told where it has the longest wait.
func (d *ShadowDenial) Note(zone string, who Who, wait time.Duration) {
	if wait >= d.Wait {
		*d = ShadowDenial{Zone: zone, Who: who, Wait: wait}
	}
}

// WouldDeny tells handlers of events, and by placeholders those that handle the request from here
// on. It does nothing for none.
func (o *Responder) WouldDeny(r *http.Request, would *ShadowDenial) {
	if would.Zone == "" {
		return
	}
	seconds := retryAfterSeconds(would.Wait, 0)
	o.Events.emit(wouldDenyEvent, r, would.Zone, &would.Who, seconds)
	if repl := reqkey.ReplacerOf(r); repl != nil {
		repl.Set(placeholderPrefix+wouldDenyName, would.Zone)
		repl.Set(placeholderPrefix+wouldDenyWait, seconds)
	}
}

// Deny answers a denied request. It returns an error only for the server's error routes to handle;
// else the response is written.
func (o *Responder) Deny(w http.ResponseWriter, r *http.Request, d *Denial) error {
	a := &o.replies[d.Reason]
	refuseBody(w, r)
	if d.Reason == TooEarly {
		return o.writeFixed(w, r, a)
	}
	seconds, results := int64(0), d.Results // no wait ends what an operator has set
	if a.fixed {
		results = nil
	} else if d.Reason != TooLarge {
		seconds = retryAfterSeconds(d.Wait, o.Jitter)
	}
	repl := reqkey.ReplacerOf(r)
	setPlaceholders(repl, d.Zone, seconds, results)
	o.Events.emit(exceededEvent, r, d.Zone, &d.Who, seconds)
	if d.Begins {
		o.Events.emit(bannedEvent, r, d.Zone, &d.Who, seconds)
	}
	if a.fixed {
		if isGRPC(r) {
			writeGRPC(w, a.code, a.text, -1)
			return nil
		}
		return o.writeFixed(w, r, a)
	}
	f := d.Fields
	if f == nil {
		f = new(Fields)
	}
	f.clear()
	f.addResults(w.Header(), o.Headers, results, d.Now)
	if isGRPC(r) {
		f.writeTo(w.Header())
		if d.Reason == TooLarge {
			writeGRPC(w, a.code, string(d.appendCosts(nil)), -1)
		} else {
			writeGRPC(w, a.code, o.textOf(repl, a, seconds), pushback(d.Wait, o.Jitter))
		}
		return nil
	}
	if d.Reason != TooLarge {
		f.addNumber("Retry-After", seconds)
	}
	f.addReady("Cache-Control", "no-store")
	if o.isRouted(r, a.err) {
		f.writeTo(w.Header())
		return a.err
	}
	f.addReady("Content-Type", o.contentType)
	f.writeTo(w.Header())
	if o.message != nil {
		f.body = o.appendMessage(f.body, repl)
	} else {
		f.body = o.appendProblem(f.body, d, seconds)
	}
	f.writeBody(w, r, a.status)
	return nil
}

// writeBody writes a response of the body.
func (f *Fields) writeBody(w http.ResponseWriter, r *http.Request, status int) {
	writeResponse(w, r, status, f.body)
	if cap(f.body) > maxKeptBody {
		f.body = nil
	}
}

// refuseBody has an answer not wait for a body that the client has kept back, as with Expect:
// 100-continue. Go asks for it, and answers when it has come, unless the answer closes the
// connection.
func refuseBody(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 && r.ContentLength != 0 && len(r.Header["Expect"]) > 0 {
		w.Header()["Connection"] = []string{"close"}
	}
}

// writeFixed answers with problem details that are always the same.
func (o *Responder) writeFixed(w http.ResponseWriter, r *http.Request, a *reply) error {
	h := w.Header()
	h["Cache-Control"] = []string{"no-store"}
	if o.isRouted(r, a.err) {
		return a.err
	}
	h["Content-Type"] = []string{"application/problem+json"}
	writeResponse(w, r, a.status, a.problem)
	return nil
}

// maxRetryAfter keeps Retry-After in what a client with 32 bits can read.
const maxRetryAfter = math.MaxInt32

// retryAfterSeconds returns a wait in whole seconds, rounded up and never 0, plus up to the share
// jitter of it at random.
func retryAfterSeconds(wait time.Duration, jitter float64) int64 {
	seconds := min(max(ceilSeconds(wait), 1), maxRetryAfter)
	if !(jitter > 0) {
		return seconds
	}
	// Of a few seconds the share is less than one; a second more for every other client still
	// spreads them.
	spread := max(int64(float64(seconds)*min(jitter, 1)), 1)
	return min(seconds+rand.Int64N(spread+1), maxRetryAfter)
}
