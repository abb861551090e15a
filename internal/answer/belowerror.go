package answer

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
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
// Retry-After and Cache-Control of the denial. Nothing else breaks. TestHeadersOfErrorRoutes and
// TestGuardIsLoaded fail with such a Caddy.
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
	guarded := &guardedWriter{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
	for i, name := range guardedHeaders {
		guarded.values[i] = w.Header().Get(name)
	}
	return next.ServeHTTP(guarded, r)
}

// guardedHeaders are those that tell of an error and mean something else below 400.
var guardedHeaders = [...]string{"Retry-After", "Cache-Control"}

// guardedWriter removes headers once it knows the status. It leaves those of the error route.
type guardedWriter struct {
	*caddyhttp.ResponseWriterWrapper
	values [len(guardedHeaders)]string // as the denial has set them
	wrote  bool
}

// WriteHeader writes the status, which is final unless it is one of 1xx.
func (w *guardedWriter) WriteHeader(status int) {
	informs := status >= 100 && status < 200 && status != http.StatusSwitchingProtocols
	if !w.wrote && !informs {
		w.wrote = true
		if status < 400 {
			w.removeHeaders()
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// removeHeaders removes the values of the denial. A proxy adds those of its upstream behind them.
func (w *guardedWriter) removeHeaders() {
	h := w.Header()
	for i, name := range guardedHeaders {
		switch values := h[name]; {
		case len(values) == 0 || w.values[i] == "" || values[0] != w.values[i]:
		case len(values) == 1:
			delete(h, name)
		default:
			h[name] = values[1:]
		}
	}
}

// begin writes the status that a body without one has.
func (w *guardedWriter) begin() {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
}

// Write writes a part of the body.
func (w *guardedWriter) Write(b []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(b)
}

// ReadFrom writes a body.
func (w *guardedWriter) ReadFrom(r io.Reader) (int64, error) {
	w.begin()
	return w.ResponseWriterWrapper.ReadFrom(r)
}

// FlushError sends what is written.
func (w *guardedWriter) FlushError() error {
	w.begin()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Interface guards
var (
	_ caddyhttp.MiddlewareHandler = (*BelowError)(nil)
	_ io.ReaderFrom               = (*guardedWriter)(nil)
)
