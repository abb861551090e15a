package operate

import (
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
	w := errorWalk{r: s.server.Errors.WithError(r, caddyhttp.HandlerError{StatusCode: to.Advised().Status})}
	if w.routes(s.server.Errors.Routes); w.status >= 200 && w.status < 400 {
		to.Advised().WarnZone(s.zone.Name, warning.HiddenDenial, fmt.Sprintf("clients and monitoring take its denials for successes, as an error route answers them with %d by %s; "+
			"write `respond` or `file_server` without a status there, which keeps that of the denial", w.status, w.by))
	}
}

// hasErrors reports whether a route has error routes of its own.
func hasErrors(route *caddyhttp.Route) bool {
	return slices.ContainsFunc(route.Handlers, func(h caddyhttp.MiddlewareHandler) bool {
		sub, ok := h.(*caddyhttp.Subroute)
		return ok && sub.Errors != nil
	})
}

// An errorWalk is the way of a denied request through error routes, as far as its URL and status
// decide that.
type errorWalk struct {
	search
	r      *http.Request
	groups []string // in which a route has matched
	status int      // is what it is answered with, 0 where that is not known
}

// routes goes through routes, and reports whether the way ends there, or is not known.
func (w *errorWalk) routes(routes caddyhttp.RouteList) (ends bool) {
	for i := range routes {
		route := &routes[i]
		if route.Group != "" && slices.Contains(w.groups, route.Group) {
			continue
		}
		enters, sure := w.decides(route.MatcherSets)
		if sure && !enters {
			continue
		}
		if route.Group != "" {
			w.groups = append(w.groups, route.Group)
		}
		ends := slices.ContainsFunc(route.Handlers, w.handler) || route.Terminal
		if !sure && (ends || route.Group != "") {
			w.status = 0
			return true
		}
		if ends {
			return true
		}
	}
	return false
}

// decides reports whether a denied request enters a route, and whether that is sure.
func (w *errorWalk) decides(sets caddyhttp.MatcherSets) (enters, sure bool) {
	if len(sets) == 0 {
		return true, true
	}
	sure = true
	for _, set := range sets {
		decided := slices.DeleteFunc(slices.Clone(set), w.leavesOpen)
		ok, err := decided.MatchWithError(w.r)
		if ok && len(decided) == len(set) {
			return true, true
		}
		sure = sure && !ok && err == nil
	}
	return false, sure
}

// leavesOpen reports whether neither the URL nor the status decides what a matcher says.
func (w *errorWalk) leavesOpen(m any) bool {
	by, ok := m.(*caddyhttp.MatchExpression)
	if !ok {
		return w.isOpen(m)
	}
	return strings.Trim(strings.ReplaceAll(by.Expr, "{http.error.status_code}", ""), "0123456789 in()[],<>=!&|") != ""
}

// handler reports whether a handler answers, or is one of which that is not known.
func (w *errorWalk) handler(h caddyhttp.MiddlewareHandler) (ends bool) {
	w.by = nameOf(h)
	switch h := h.(type) {
	case *caddyhttp.Subroute:
		return h.Errors != nil || w.routes(h.Routes)
	case *caddyhttp.StaticResponse:
		w.answers(h.StatusCode)
	case *fileserver.FileServer:
		if !h.PassThru {
			w.answers(h.StatusCode)
		}
	}
	w.isPathUnknown = w.isPathUnknown || w.by == "rewrite"
	return !slices.Contains(silent, w.by)
}

// silent are handlers that answer nothing.
var silent = []string{"vars", "map", "headers", "rewrite", "encode", "templates", "tracing", "log_append", "request_body", "rate_limit"}

// answers notes a status that a handler is configured to answer with, if it has one.
func (w *errorWalk) answers(status caddyhttp.WeakString) {
	if repl := reqkey.ReplacerOf(w.r); repl != nil {
		w.status, _ = strconv.Atoi(repl.ReplaceAll(status.String(), ""))
	}
}
