package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// longestRetryAfter keeps Retry-After in what a client with 32 bits can read.
const longestRetryAfter = math.MaxInt32

// The problem types and their titles are those that the draft registers with IANA; the second one is for a zone that denies while Redis is lost.
const (
	quotaExceeded   = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded"`
	reducedCapacity = `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporary Reduced Capacity"`
)

// tooEarlyProblem is the answer to early data (RFC 8470): it names no limit, as none of the client's own has denied.
const tooEarlyProblem = `{"type":"about:blank","title":"Too Early","status":425,` +
	`"detail":"The address of the client is not proven yet. Send the request again after the TLS handshake."}`

// retryAfterSeconds is a wait in whole seconds, rounded up and never 0, plus up to the share jitter of it at random.
func retryAfterSeconds(wait time.Duration, jitter float64) int64 {
	seconds := min(max(ceilSeconds(wait), 1), longestRetryAfter)
	if !(jitter > 0) {
		return seconds
	}
	// Of a few seconds the share is less than one; a second more for every other client still spreads them.
	spread := max(int64(float64(seconds)*min(jitter, 1)), 1)
	return min(seconds+rand.Int64N(spread+1), longestRetryAfter)
}

// A responder answers refused requests by a handler's options. It is not changed after newResponder and is safe for concurrent use.
type responder struct {
	status  int
	message *message // nil for problem details
	jitter  float64
	sets    headerSets
	events  *events

	contentType string
	// The problem details up to the wait.
	exceeded string
	reduced  string

	refused     error
	unavailable error
	early       error
}

// newResponder takes the handler's options, with defaults filled in. events may be nil.
func newResponder(status int, text string, jitter float64, sets headerSets, e *events) *responder {
	contentType := "application/problem+json"
	var m *message
	if text != "" {
		contentType = "text/plain; charset=utf-8"
		if m = compileMessage(text); m.json {
			contentType = "application/json"
		}
	}
	return &responder{
		status:  status,
		message: m,
		jitter:  jitter,
		sets:    sets,
		events:  e,

		contentType: contentType,
		exceeded:    problem(quotaExceeded, status),
		reduced:     problem(reducedCapacity, http.StatusServiceUnavailable),

		// caddyhttp.Error would look up the caller for each refused request.
		refused:     caddyhttp.HandlerError{StatusCode: status, Err: errors.New("rate limit exceeded")},
		unavailable: caddyhttp.HandlerError{StatusCode: http.StatusServiceUnavailable, Err: errors.New("rate limit unavailable")},
		early: caddyhttp.HandlerError{
			StatusCode: http.StatusTooEarly, Err: errors.New("rate limit exceeded by early data, whose sender is not proven"),
		},
	}
}

// A refusal is why a request is refused.
type refusal struct {
	// zone is the one with the longest wait, wait that wait.
	zone string
	wait time.Duration
	// all is what the limits decided, also those that admitted. It is not kept.
	all []decided
	// unavailable refuses with 503 because the zone denies while Redis is lost.
	unavailable bool
}

// refuse answers a request with a refusal at now. It returns an error only for the server's error routes to handle; else the
// response is written.
func (o *responder) refuse(w http.ResponseWriter, r *http.Request, why refusal, now int64) error {
	seconds := retryAfterSeconds(why.wait, o.jitter)
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if repl != nil {
		setPlaceholders(repl, why.zone, seconds, why.all)
	}
	if o.events != nil {
		o.events.exceeded(r, why.zone, seconds)
	}
	h := w.Header()
	f := newFields()
	f.limits(h, o.sets, why.all, now)
	f.number("Retry-After", seconds)
	f.ready("Cache-Control", "no-store")
	err := o.refused
	if why.unavailable {
		err = o.unavailable
	}
	routed := isRouted(r, err)
	if !routed {
		f.ready("Content-Type", o.contentType)
	}
	f.writeTo(h)
	if routed {
		return err
	}
	o.write(w, r, repl, why, seconds)
	return nil
}

// tooEarly answers early data that was denied by the count of an address that is not proven: 425, upon which a client sends the request
// again after the handshake. Retry-After and RateLimit headers would tell of a count that is not its own.
func (o *responder) tooEarly(w http.ResponseWriter, r *http.Request) error {
	h := w.Header()
	h["Cache-Control"] = []string{"no-store"}
	if isRouted(r, o.early) {
		return o.early
	}
	h["Content-Type"] = []string{"application/problem+json"}
	delete(h, "Content-Length") // of some earlier handler's body
	w.WriteHeader(http.StatusTooEarly)
	if r.Method != http.MethodHead {
		_, _ = io.WriteString(w, tooEarlyProblem)
	}
	return nil
}

// isRouted reports whether one of the server's routes for errors would answer this request if it failed with err. Those routes belong to all
// sites of a listener, so that there are some says nothing: without one that matches, Caddy answers with an empty body. A request that is on an error
// route already is not routed again: an error from there goes nowhere.
func isRouted(r *http.Request, err error) bool {
	srv, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if srv == nil || srv.Errors == nil || len(srv.Errors.Routes) == 0 || r.Context().Value(caddyhttp.ErrorCtxKey) != nil {
		return false
	}
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if repl == nil {
		return false
	}
	failed := srv.Errors.WithError(r, err) // a shallow copy
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		// Error routes see the request as it came.
		url := *original.URL
		failed.Method, failed.RemoteAddr, failed.RequestURI, failed.URL = original.Method, original.RemoteAddr, original.RequestURI, &url
	}
	routed, _ := answers(srv.Errors.Routes, failed)
	if !routed {
		repl.DeleteByPrefix("http.error")
	}
	return routed
}

// answers reports whether a route of the list matches a request and has a handler for it. A subroute has one if its own routes have; of other
// handlers it is not asked whether they write anything. ended says that a matching route is the last one.
func answers(routes caddyhttp.RouteList, r *http.Request) (answered, ended bool) {
	var satisfied []string // groups, of which only the first route that matches is taken
	for i := range routes {
		route := &routes[i]
		if route.Group != "" && slices.Contains(satisfied, route.Group) {
			continue
		}
		matches, err := route.MatcherSets.AnyMatchWithError(r)
		if err != nil {
			return false, true
		}
		if !matches {
			continue
		}
		if route.Group != "" {
			satisfied = append(satisfied, route.Group)
		}
		for _, h := range route.Handlers {
			sub, ok := h.(*caddyhttp.Subroute)
			if !ok {
				return true, true
			}
			if answered, ended := answers(sub.Routes, r); answered || ended {
				return answered, ended
			}
		}
		if route.Terminal {
			return false, true
		}
	}
	return false, false
}

var bodies = sync.Pool{New: func() any { return new([]byte) }}

// write writes status and body. That a client is gone is not an error worth reporting.
func (o *responder) write(w http.ResponseWriter, r *http.Request, repl *caddy.Replacer, why refusal, seconds int64) {
	status := o.status
	if why.unavailable {
		status = http.StatusServiceUnavailable
	}
	body := bodies.Get().(*[]byte)
	defer func() {
		if cap(*body) <= 64<<10 {
			bodies.Put(body)
		}
	}()
	switch {
	case o.message == nil:
		*body = o.appendProblem((*body)[:0], why, seconds)
	case repl != nil:
		*body = o.message.appendTo((*body)[:0], repl.Get)
	default:
		*body = o.message.appendTo((*body)[:0], func(string) (any, bool) { return nil, false })
	}
	h := w.Header()
	delete(h, "Content-Length") // of some earlier handler's body
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(*body)
	}
}

// problem begins problem details (RFC 9457).
func problem(begin string, status int) string {
	return begin + `,"status":` + strconv.Itoa(status) + `,"detail":"Try again in `
}

// appendProblem appends problem details.
func (o *responder) appendProblem(b []byte, why refusal, seconds int64) []byte {
	if why.unavailable {
		b = append(b, o.reduced...)
	} else {
		b = append(b, o.exceeded...)
	}
	b = strconv.AppendInt(b, seconds, 10)
	if seconds == 1 {
		b = append(b, ` second."`...)
	} else {
		b = append(b, ` seconds."`...)
	}
	if !why.unavailable {
		b = appendViolated(b, why.all)
	}
	return append(b, '}')
}

// appendViolated appends the names of the policies that refused, if any did: a zone that denies requests without a key has none.
func appendViolated(b []byte, all []decided) []byte {
	separator := `,"violated-policies":[`
	for i := range all {
		if all[i].Allowed {
			continue
		}
		b = append(b, separator...)
		separator = ","
		if quoted := all[i].quoted; quoted != "" {
			b = append(b, quoted...) // a string of a structured field is one of JSON as well
			continue
		}
		quoted, _ := json.Marshal(all[i].name)
		b = append(b, quoted...)
	}
	if separator == "," {
		b = append(b, ']')
	}
	return b
}

// setPlaceholders makes {http.rate_limit.*} known to what handles the request from here on. zone and wait are of a refusal, zone
// is "" for an admitted request. It costs one allocation, a second one for several limits: the function that the replacer asks. That is read
// as late as the access log is written, after the handler has returned, so it can't be reused.
func setPlaceholders(repl *caddy.Replacer, zone string, wait int64, all []decided) {
	if len(all) == 1 && all[0].Limit == all[0].policy.limit {
		switch zone {
		case "":
			setOnePlaceholder(repl, all[0].policy, all[0].Remaining, all[0].resetIn())
			return
		case all[0].policy.zone:
			setOneExceeded(repl, all[0].policy, wait, all[0].Remaining, all[0].resetIn())
			return
		}
	}
	first, more := standings(all) // assigned once, so that the closure holds copies
	repl.Map(func(name string) (any, bool) {
		name, ok := strings.CutPrefix(name, placeholderPrefix)
		if !ok {
			return nil, false
		}
		if zone != "" {
			switch name {
			case exceededName:
				return zone, true
			case exceededWait:
				return wait, true
			}
		}
		return standingOf(first, more, name)
	})
}

const (
	placeholderPrefix = "http.rate_limit."
	exceededName      = "exceeded.name"
	exceededWait      = "exceeded.wait"
)

// setOnePlaceholder is setPlaceholders for most requests: its function holds 32 bytes.
func setOnePlaceholder(repl *caddy.Replacer, p *policy, remaining int64, reset time.Duration) {
	repl.Map(func(name string) (any, bool) {
		name, ok := strings.CutPrefix(name, placeholderPrefix)
		if !ok {
			return nil, false
		}
		return standingOf(standing{policy: p, limit: p.limit, remaining: remaining, reset: reset}, nil, name)
	})
}

// setOneExceeded is setPlaceholders for most refusals: its function holds 40 bytes.
func setOneExceeded(repl *caddy.Replacer, p *policy, wait, remaining int64, reset time.Duration) {
	repl.Map(func(name string) (any, bool) {
		name, ok := strings.CutPrefix(name, placeholderPrefix)
		switch {
		case !ok:
			return nil, false
		case name == exceededName:
			return p.zone, true
		case name == exceededWait:
			return wait, true
		}
		return standingOf(standing{policy: p, limit: p.limit, remaining: remaining, reset: reset}, nil, name)
	})
}

// standing is what placeholders say of one limit.
type standing struct {
	*policy
	limit, remaining int64
	reset            time.Duration
}

func (d *decided) standing() standing {
	return standing{policy: d.policy, limit: d.Limit, remaining: d.Remaining, reset: d.resetIn()}
}

func standings(all []decided) (first standing, more []standing) {
	if len(all) == 0 {
		return first, nil
	}
	if len(all) > 1 {
		more = make([]standing, 0, len(all)-1)
	}
	for i := range all[1:] {
		more = append(more, all[i+1].standing())
	}
	return all[0].standing(), more
}

// standingOf answers <zone>.limit, .remaining and .reset; of a zone with several limits, for the tightest.
func standingOf(first standing, more []standing, name string) (any, bool) {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return nil, false
	}
	zone, what := name[:dot], name[dot+1:]
	var shown standing
	for i := -1; i < len(more); i++ {
		s := first
		if i >= 0 {
			s = more[i]
		}
		if s.policy == nil || s.zone != zone {
			continue
		}
		if shown.policy == nil || s.remaining < shown.remaining || s.remaining == shown.remaining && s.window > shown.window {
			shown = s
		}
	}
	if shown.policy == nil {
		return nil, false
	}
	switch what {
	case "limit":
		return shown.limit, true
	case "remaining":
		return shown.remaining, true
	case "reset":
		return ceilSeconds(shown.reset), true
	}
	return nil, false
}

const exceededEvent = "rate_limit_exceeded"

// events tells Caddy's event system of refusals.
type events struct {
	app *caddyevents.App
	ctx caddy.Context
}

// newEvents is called from Provision.
func newEvents(ctx caddy.Context) (*events, error) {
	app, err := ctx.App("events")
	if err != nil {
		return nil, fmt.Errorf("getting events app: %w", err)
	}
	return &events{app: app.(*caddyevents.App), ctx: ctx}, nil
}

// exceeded emits the event of one refused request if anyone listens. Handlers of events run within the request.
func (e *events) exceeded(r *http.Request, zone string, seconds int64) {
	if !e.app.ShouldEmit(exceededEvent) {
		return
	}
	data := map[string]any{"zone": zone, "wait": time.Duration(seconds) * time.Second, "remote_ip": "", "client_ip": ""}
	if !reqkey.IsEarly(r) { // which proves no address
		data["remote_ip"] = reqkey.RemoteHost(r)
		data["client_ip"] = reqkey.ClientIP(r)
	}
	e.app.Emit(e.ctx, exceededEvent, data)
}
