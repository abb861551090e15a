package answer

import (
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// isRouted reports whether one of the server's routes for errors would answer this request if it
// failed with err. Those routes belong to all sites of a listener, so it is not enough that there
// are some: without one that matches, Caddy answers with an empty body. A request that is on an
// error route already is not routed again: an error from there goes nowhere.
func (o *Responder) isRouted(r *http.Request, err error) bool {
	if o.NoErrorRoutes {
		return false
	}
	srv, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if srv == nil || srv.Errors == nil || len(srv.Errors.Routes) == 0 || r.Context().Value(caddyhttp.ErrorCtxKey) != nil {
		return false
	}
	repl := reqkey.ReplacerOf(r)
	if repl == nil {
		return false
	}
	failed := srv.Errors.WithError(r, err) // a shallow copy
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		// Error routes see the request as it came.
		url := *original.URL
		failed.Method, failed.RemoteAddr, failed.RequestURI, failed.URL =
			original.Method, original.RemoteAddr, original.RequestURI, &url
	}
	routed, _ := matchRoutes(srv.Errors.Routes, failed)
	if !routed {
		repl.DeleteByPrefix("http.error")
	}
	return routed
}

// matchRoutes reports whether a route of the list matches a request and has a handler for it. A
// subroute has one if its own routes have; other handlers are not asked whether they write
// anything. ended is set when a matching route is the last one.
func matchRoutes(routes caddyhttp.RouteList, r *http.Request) (handled, ended bool) {
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
			if handled, ended := matchRoutes(sub.Routes, r); handled || ended {
				return handled, ended
			}
		}
		if route.Terminal {
			return false, true
		}
	}
	return false, false
}
