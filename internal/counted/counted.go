// Package counted remembers which zones a request has been through, when it comes back through an
// error route.
package counted

import (
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// variable holds the names of the zones, in the request's replacer. It is not one of the request's
// variables: those are a map without a lock, and a handler that has returned may have left somebody
// behind who reads it, such as the proxy that was still dialing.
const variable = "http.rate_limit.counted"

// Before returns the zones that have counted this request, which comes back through an error route.
func Before(r *http.Request) []string {
	if r.Context().Value(caddyhttp.ErrorCtxKey) == nil {
		return nil
	}
	counted, _ := of(r)
	return counted
}

// Mark notes zones that have counted a request, beside those that are noted already.
func Mark(r *http.Request, zones []string) {
	counted, repl := of(r)
	if repl == nil {
		return
	}
	counted = slices.Clone(counted)
	for _, name := range zones {
		if !slices.Contains(counted, name) {
			counted = append(counted, name)
		}
	}
	repl.Set(variable, counted)
}

func of(r *http.Request) (counted []string, repl *caddy.Replacer) {
	if repl, _ = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); repl != nil {
		v, _ := repl.Get(variable)
		counted, _ = v.([]string)
	}
	return counted, repl
}
