package answer

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(new(BelowError))
}

// BelowError keeps Retry-After and Cache-Control of a denial out of an answer below 400, which an
// error route may give: a page that a cache may store, or a shadowban. Only an error route knows
// its status, so this handler stands before all of them. `rate_limit` puts it there when a
// configuration is loaded; it has no options, and need never be written.
type BelowError struct{}

// belowErrorRoute is the route that has the handler.
var belowErrorRoute = json.RawMessage(`{"handler":"rate_limit_below_error"}`)

// CaddyModule returns the Caddy module information.
func (*BelowError) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.rate_limit_below_error", New: func() caddy.Module { return new(BelowError) }}
}

// GuardErrorRoutes puts a BelowError before the error routes of a server that loads its handlers,
// unless one is there. It relies on Caddy to load and compile a server's error routes after its
// other routes. With a Caddy that does so before, the guard never runs, and answers below 400 keep
// Retry-After and Cache-Control of the denial. Nothing else breaks. TestHeadersOfErrorRoutes fails
// with such a Caddy.
func GuardErrorRoutes(srv *caddyhttp.Server) {
	if srv.Errors == nil || len(srv.Errors.Routes) == 0 || GuardsErrorRoutes(srv) {
		return
	}
	guard := caddyhttp.Route{HandlersRaw: []json.RawMessage{belowErrorRoute}}
	srv.Errors.Routes = slices.Insert(slices.Clone(srv.Errors.Routes), 0, guard)
}

// GuardsErrorRoutes reports whether the first of a server's error routes is none of the
// configuration, but a BelowError.
func GuardsErrorRoutes(srv *caddyhttp.Server) bool {
	if srv.Errors == nil || len(srv.Errors.Routes) == 0 {
		return false
	}
	first := &srv.Errors.Routes[0]
	isRaw := func(raw json.RawMessage) bool { return bytes.Equal(raw, belowErrorRoute) }
	return slices.ContainsFunc(first.HandlersRaw, isRaw) || slices.ContainsFunc(first.Handlers, isBelowError)
}

func isBelowError(h caddyhttp.MiddlewareHandler) bool {
	_, ok := h.(*BelowError)
	return ok
}

// A denialError is the error that a denied request is for error routes.
type denialError string

func (e denialError) Error() string { return string(e) }

// ServeHTTP hands a denied request on with a writer that knows what the denial has set.
func (*BelowError) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	err, _ := r.Context().Value(caddyhttp.ErrorCtxKey).(error)
	if denied := denialError(""); !errors.As(err, &denied) {
		return next.ServeHTTP(w, r)
	}
	var set [len(guardedHeaders)]string // by the denial
	for i, name := range guardedHeaders {
		set[i] = w.Header().Get(name)
	}
	guarded := NewBeginWriter(w, func(status int) {
		if status < 400 {
			removeHeaders(w.Header(), set)
		}
	})
	return next.ServeHTTP(guarded, r)
}

// guardedHeaders are those that tell of an error and mean something else below 400.
var guardedHeaders = [...]string{"Retry-After", "Cache-Control"}

// removeHeaders removes the values that the denial has set, and leaves those of the error route. A
// proxy adds those of its upstream behind them.
func removeHeaders(h http.Header, set [len(guardedHeaders)]string) {
	for i, name := range guardedHeaders {
		switch values := h[name]; {
		case len(values) == 0 || set[i] == "" || values[0] != set[i]:
		case len(values) == 1:
			delete(h, name)
		default:
			h[name] = values[1:]
		}
	}
}

// Interface guard
var _ caddyhttp.MiddlewareHandler = (*BelowError)(nil)
