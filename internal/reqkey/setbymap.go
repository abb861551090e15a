package reqkey

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	maphandler "github.com/caddyserver/caddy/v2/modules/caddyhttp/map"
)

// IsSetByMap reports whether among these routes, with all that is in them, a map sets a
// placeholder. A route whose handlers are being provisioned, or are still to be, has them as JSON.
func IsSetByMap(routes caddyhttp.RouteList, name string) bool {
	for _, route := range routes {
		for _, handler := range route.Handlers {
			switch h := handler.(type) {
			case *maphandler.Handler:
				if slices.ContainsFunc(h.Destinations, func(d string) bool { return strings.Trim(d, "{}") == name }) {
					return true
				}
			case *caddyhttp.Subroute:
				if IsSetByMap(h.Routes, name) {
					return true
				}
			}
		}
		for _, text := range route.HandlersRaw {
			var handler any
			if json.Unmarshal(text, &handler) == nil && mapsTo(handler, name) {
				return true
			}
		}
	}
	return false
}

// mapsTo does the same for JSON.
func mapsTo(v any, name string) bool {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, func(one any) bool { return mapsTo(one, name) })
	case map[string]any:
		if to, ok := v["destinations"].([]any); ok && v["handler"] == "map" {
			return slices.Contains(to, any("{"+name+"}"))
		}
		return mapsTo(v["handle"], name) || mapsTo(v["routes"], name)
	}
	return false
}
