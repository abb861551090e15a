package reqkey

import (
	"encoding/json"
	"slices"
	"strings"
)

// OnlyClientsIn returns a header, a cookie or a parameter of the query in a template of which
// nothing else tells clients apart, "" where something else does or nothing. A header that claims
// an address is left out: Check warns of it.
func OnlyClientsIn(template string) (name string) {
	parts, _ := parse(template) // Check reports the error
	for _, p := range parts {
		switch {
		case p.literal || !p.tells:
		case p.several == nil && p.text != headerPrefix+"Cookie" || claimsAddress(p.text):
			return ""
		default:
			name = p.text
		}
	}
	return name
}

// TellsNobody reports whether no part of a template tells clients apart: there is none, or they
// come with every request.
func TellsNobody(template string) bool {
	parts, _ := parse(template)
	return !slices.ContainsFunc(parts, func(p part) bool { return p.tells })
}

// BoundsAll reports whether a zone with such a key, which may be "" for the default, holds for a
// client whatever it sends.
func BoundsAll(template string) bool {
	return template == "" || HasAddress(template) || TellsNobody(template)
}

// harmless are handlers that check nobody. Any other one that comes before a limit may be what
// checks the header that its key is.
var harmless = []string{
	"vars", "map", "headers", "rewrite", "request_body", "encode", "tracing", "log_append", "subroute", "static_response", "file_server", "templates",
	"push", "metrics", "invoke", "intercept", "copy_response", "copy_response_headers", "rate_limit", "rate_limit_status", "rate_limit_below_error",
}

// IsOpen reports whether among these handlers, as JSON and with all that is in them, nothing comes
// before a zone that may check who a client is, and no zone holds for a client whatever it sends.
func IsOpen(handlers []json.RawMessage, zone string) bool {
	w := openWalk{zone: zone}
	for _, text := range handlers {
		var handler any
		if json.Unmarshal(text, &handler) != nil {
			return false // Caddy says what is wrong with it
		}
		w.visit(handler)
	}
	return w.limits && !w.checks && !w.bounds
}

// openWalk goes through all handlers in their order.
type openWalk struct {
	zone                   string
	limits, checks, bounds bool
}

func (w *openWalk) visit(v any) {
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			w.visit(one)
		}
	case map[string]any:
		if name, ok := v["handler"].(string); ok {
			w.meet(name, v)
		}
		w.visit(v["handle"])
		w.visit(v["routes"])
	}
}

// meet notes what a handler is.
func (w *openWalk) meet(name string, handler map[string]any) {
	if !w.limits {
		w.checks = w.checks || !slices.Contains(harmless, name) || name == "static_response" && denies(handler["status_code"])
	}
	if name != "rate_limit" {
		return
	}
	zones, _ := handler["rate_limits"].(map[string]any)
	for name, of := range zones {
		of, _ := of.(map[string]any)
		key, _ := of["key"].(string)
		w.limits = w.limits || name == w.zone
		w.bounds = w.bounds || BoundsAll(key)
	}
}

// denies reports whether a status tells clients that they may not.
func denies(status any) bool {
	text, _ := json.Marshal(status)
	return slices.Contains([]string{"401", "403"}, strings.Trim(string(text), `"`))
}
