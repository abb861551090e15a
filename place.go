package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// Where in a configuration an error is: the option and the zone, and of those file and line in a
// Caddyfile or the path in JSON.

// optionError is a mistake in the value of one option, by the option's name in a Caddyfile. The
// Caddyfile parser finds the line by it, and inJSON the field.
type optionError struct {
	option string
	err    error
}

func (e *optionError) Error() string { return "parsing " + e.option + ": " + e.err.Error() }
func (e *optionError) Unwrap() error { return e.err }

func wrong(option string, err error) error {
	if err == nil {
		return nil
	}
	return &optionError{option, err}
}

func wrongf(option, format string, args ...any) error {
	return &optionError{option, fmt.Errorf(format, args...)}
}

// zoneError is a mistake in a zone.
type zoneError struct {
	zone string
	err  error
}

func (e *zoneError) Error() string { return fmt.Sprintf("zone %q: %s", spelling.Clip(e.zone), e.err) }
func (e *zoneError) Unwrap() error { return e.err }

// placed is an error whose text names its file and line.
type placed struct{ error }

func (e placed) Unwrap() error { return e.error }

// placeOf returns the token's file and line.
func placeOf(token caddyfile.Token) string { return token.File + ":" + strconv.Itoa(token.Line) }

// placeAt adds file and line, unless the error has them.
func placeAt(token caddyfile.Token, err error) error {
	var already placed
	if errors.As(err, &already) || strings.Contains(err.Error(), ", at "+token.File+":") {
		return placed{err}
	}
	d := caddyfile.NewDispenser([]caddyfile.Token{token})
	d.Next()
	return placed{d.WrapErr(err)}
}

// fieldNames are the names in JSON of options that have another one in a Caddyfile.
var fieldNames = map[string]string{"limit": "limits", "events": "max_events", "status": "status_code"}

// jsonError is an error in the words of JSON.
type jsonError struct {
	text string
	err  error
}

func (e *jsonError) Error() string { return e.text }
func (e *jsonError) Unwrap() error { return e.err }

// inJSON says an error about a handler in the words of JSON, and adds the field that it is about.
// Caddy adds the handler's own path.
func inJSON(err error) error {
	var path []string
	text := config.InJSON(err.Error())
	var zone *zoneError
	if errors.As(err, &zone) {
		path = append(path, zonePath(zone.zone))
	}
	var about *optionError
	if errors.As(err, &about) {
		field := cmp.Or(fieldNames[about.option], about.option)
		text = strings.Replace(text, "parsing "+about.option+":", "parsing "+field+":", 1)
		path = append(path, field)
	}
	if len(path) > 0 {
		text += ", at " + strings.Join(path, ".")
	}
	return &jsonError{text, err}
}

// zonePath returns the path of a zone in its handler.
func zonePath(zone string) string { return fmt.Sprintf("rate_limits[%q]", spelling.Clip(zone)) }

// pathInJSON returns the path of the route that is being provisioned, such as
// apps.http.servers.srv0.routes[2], or of as much of it as is known, "" for nothing. Handlers in
// routes within that one have the same path.
func pathInJSON(ctx caddy.Context) string {
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server == nil {
		return ""
	}
	path := "apps.http.servers." + server.Name()
	if i := provisioning(server.Routes); i >= 0 {
		return fmt.Sprintf("%s.routes[%d]", path, i)
	}
	if server.Errors != nil {
		if i := provisioning(server.Errors.Routes); i >= 0 {
			if answer.GuardsErrorRoutes(server) {
				i--
			}
			return fmt.Sprintf("%s.errors.routes[%d]", path, i)
		}
	}
	return path
}

// provisioning returns the route whose handlers are being loaded, -1 for none: Caddy loads them in
// order, and clears their JSON when it has them, as LoadModule of caddy.Context documents. With a
// Caddy that does otherwise, messages name no route or another one, and TestWarningsAtLoadOfJSON
// fails.
func provisioning(routes caddyhttp.RouteList) int {
	return slices.IndexFunc(routes, func(r caddyhttp.Route) bool { return len(r.HandlersRaw) > 0 })
}
