// Package counted remembers which zones a request has been through, when it comes back through an
// error route.
package counted

import (
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// variable holds the names of the zones.
const variable = "rate_limit.counted"

// Before returns the zones that have counted this request, which comes back through an error route.
func Before(r *http.Request, vars map[string]any) []string {
	// The variable first: a value that no context has is looked for in all of them.
	v, ok := vars[variable]
	if !ok || r.Context().Value(caddyhttp.ErrorCtxKey) == nil {
		return nil
	}
	counted, _ := v.([]string)
	return counted
}

// Mark notes zones that have counted a request, beside those that are noted already.
func Mark(r *http.Request, zones []string) {
	counted, _ := caddyhttp.GetVar(r.Context(), variable).([]string)
	counted = slices.Clone(counted)
	for _, name := range zones {
		if !slices.Contains(counted, name) {
			counted = append(counted, name)
		}
	}
	caddyhttp.SetVar(r.Context(), variable, counted)
}
