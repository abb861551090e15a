package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/hints"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// UnmarshalJSON reads a handler, strictly as Caddy does. It says what to write in place of some
// shapes that other rate limiters have.
func (h *Handler) UnmarshalJSON(text []byte) error {
	type handler Handler // without this method
	return hints.JSON(caddy.StrictUnmarshalJSON(text, (*handler)(h)), shapes)
}

// UnmarshalJSON reads the app, likewise.
func (a *App) UnmarshalJSON(text []byte) error {
	type app App
	return hints.JSON(caddy.StrictUnmarshalJSON(text, (*app)(a)), shapes)
}

// shapes are what to write where JSON has a value of another type.
var shapes = map[reflect.Type]string{
	reflect.TypeFor[map[string]*Zone](): `write an object of zones by their names, like {"login": {"limits": [{"max_events": 5, "window": "1m"}]}}`,
	reflect.TypeFor[Zone]():             zoneShape,
	reflect.TypeFor[*Zone]():            zoneShape,
	reflect.TypeFor[Limit]():            limitShape,
	reflect.TypeFor[[]Limit]():          "write a list; " + limitShape,
	reflect.TypeFor[Redis]():            redisShape,
	reflect.TypeFor[*Redis]():           redisShape,
}

const (
	zoneShape  = `write an object with the list in it, like {"limits": [{"max_events": 5, "window": "1m"}]}`
	limitShape = `write each rate as an object, like {"max_events": 100, "window": "1m"}`
	redisShape = `write an object, like {"url": "redis://localhost:6379/0"}`
)

// fieldNames are the names in JSON of options that have another one in a Caddyfile.
var fieldNames = map[string]string{"limit": "limits", "events": "max_events", "status": "status_code"}

// inJSON adds the field that an error is about, in a handler. Caddy adds the handler's own path.
func inJSON(err error) error {
	var path []string
	var zone *zoneError
	if errors.As(err, &zone) {
		path = append(path, zonePath(zone.zone))
	}
	var about *optionError
	if errors.As(err, &about) {
		path = append(path, cmp.Or(fieldNames[about.option], about.option))
	}
	if len(path) == 0 {
		return err
	}
	return fmt.Errorf("%w, at %s", err, strings.Join(path, "."))
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
			return fmt.Sprintf("%s.errors.routes[%d]", path, i)
		}
	}
	return path
}

// provisioning returns the route whose handlers are being loaded, -1 for none: Caddy loads them in
// order, and drops their JSON when it has them.
func provisioning(routes caddyhttp.RouteList) int {
	return slices.IndexFunc(routes, func(r caddyhttp.Route) bool { return len(r.HandlersRaw) > 0 })
}
