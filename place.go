package ratelimit

import (
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// placeInJSON returns the path of the route that is being provisioned, such as
// apps.http.servers.srv0.routes[2], or of as much of it as is known, "" for nothing. Handlers in
// routes within that one have the same path.
func placeInJSON(ctx caddy.Context) string {
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
	for i := range routes {
		if len(routes[i].HandlersRaw) > 0 {
			return i
		}
	}
	return -1
}

// zoneError is a mistake in a zone.
type zoneError struct {
	zone string
	err  error
}

func (e *zoneError) Error() string { return fmt.Sprintf("zone %q: %s", clip(e.zone), e.err) }
func (e *zoneError) Unwrap() error { return e.err }

// jsonNames are the JSON names of options that have another one in a Caddyfile.
var jsonNames = map[string]string{"limit": "limits", "events": "max_events", "status": "status_code"}

// inJSON adds the field that an error is about, in a handler. Caddy adds the handler's own path.
func inJSON(err error) error {
	var path string
	var zone *zoneError
	if errors.As(err, &zone) {
		path = fmt.Sprintf("rate_limits[%q]", clip(zone.zone))
	}
	var about *optionError
	if errors.As(err, &about) {
		name := about.option
		if other, ok := jsonNames[name]; ok {
			name = other
		}
		if path != "" {
			path += "."
		}
		path += name
	}
	if err == nil || path == "" {
		return err
	}
	return fmt.Errorf("%w, at %s", err, path)
}
