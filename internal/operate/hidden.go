package operate

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/fileserver"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// warnHidden warns of a zone that was found where an error route is certain to answer its denials
// with a status below 400.
func (s *search) warnHidden() {
	to, ok := s.to.(config.Limiter)
	if !ok || s.leads == "" || s.server.Errors == nil || s.zone.OnlyThrottles() || slices.ContainsFunc(s.routes, hasErrors) {
		return
	}
	r, err := ExplainRequest{URL: s.leads}.build()
	if err != nil {
		return
	}
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), s.server)
	r = s.server.Errors.WithError(r, caddyhttp.HandlerError{StatusCode: to.Advised().Status})
	w := routeWalk{server: s.server, ofErrors: true, reach: func(Limiter, []string) (bool, error) { return true, nil }}
	_, err = w.routes(s.server.Errors.Routes, &r)
	n := len(w.notRun) - 1
	if err != nil || n < 0 || slices.ContainsFunc(w.notRun[:n], func(name string) bool { return !isSilent(name) }) {
		return
	}
	if status := statusOf(w.last, r); status >= 200 && status < 400 {
		to.Advised().WarnZone(s.zone.Name, warning.HiddenDenial, fmt.Sprintf("clients and monitoring take its denials for successes, as an error route answers them with %d by %s; "+
			"write `respond` or `file_server` without a status there, which keeps that of the denial", status, w.notRun[n]))
	}
}

// silent are handlers that answer nothing, beside those that change the request.
var silent = []string{"encode", "templates", "tracing", "log_append", "request_body"}

func isSilent(name string) bool { return slices.Contains(silent, name) }

// statusOf returns the status that a handler is configured to answer with, 0 where that is not
// known.
func statusOf(h caddyhttp.MiddlewareHandler, r *http.Request) (status int) {
	var text caddyhttp.WeakString
	switch h := h.(type) {
	case *caddyhttp.StaticResponse:
		text = h.StatusCode
	case *fileserver.FileServer:
		text = h.StatusCode
	}
	if repl := reqkey.ReplacerOf(r); repl != nil {
		status, _ = strconv.Atoi(repl.ReplaceAll(text.String(), ""))
	}
	return status
}

// hasErrors reports whether a route has error routes of its own.
func hasErrors(route *caddyhttp.Route) bool {
	return slices.ContainsFunc(route.Handlers, func(h caddyhttp.MiddlewareHandler) bool {
		sub, ok := h.(*caddyhttp.Subroute)
		return ok && sub.Errors != nil
	})
}

// errOpen is the error of a route of which URL and status don't decide whether a denied request
// enters it.
var errOpen = errors.New("it is not known which way the request goes")

// decides reports whether a denied request enters a route.
func decides(sets caddyhttp.MatcherSets, r *http.Request) (enters bool, err error) {
	if len(sets) == 0 {
		return true, nil
	}
	for _, set := range sets {
		decided := slices.DeleteFunc(slices.Clone(set), func(m any) bool { return leavesOpen(m, r) })
		ok, failed := decided.MatchWithError(r)
		if ok && len(decided) == len(set) {
			return true, nil
		}
		if ok || failed != nil {
			err = errOpen
		}
	}
	return false, err
}

// leavesOpen reports whether neither the URL nor the status decides what a matcher says.
func leavesOpen(m any, r *http.Request) bool {
	by, ok := m.(*caddyhttp.MatchExpression)
	if !ok {
		return (&search{path: r.URL.Path}).isOpen(m)
	}
	return strings.Trim(strings.ReplaceAll(by.Expr, "{http.error.status_code}", ""), "0123456789 in()[],<>=!&|") != ""
}
