// Which zones a request has been through is remembered for when it comes back through an error
// route.

package limits

import (
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// countedVariable holds the names of the zones, in the request's replacer. It is not one of the
// request's variables: those are a map without a lock, and a handler that has returned may have
// left somebody behind who reads it, such as the proxy that was still dialing.
const countedVariable = "http.rate_limit.counted"

// countedBefore returns the zones that have counted this request, which comes back through an error
// route.
func countedBefore(r *http.Request) []string {
	if r.Context().Value(caddyhttp.ErrorCtxKey) == nil {
		return nil
	}
	counted, _ := countedIn(r)
	return counted
}

// markCounted notes zones that have counted a request, beside those that are noted already.
func markCounted(r *http.Request, zones []string) {
	counted, repl := countedIn(r)
	if repl == nil {
		return
	}
	all := slices.Concat(counted, zones)
	slices.Sort(all)
	repl.Set(countedVariable, slices.Compact(all))
}

func countedIn(r *http.Request) (counted []string, repl *caddy.Replacer) {
	if repl, _ = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); repl != nil {
		v, _ := repl.Get(countedVariable)
		counted, _ = v.([]string)
	}
	return counted, repl
}
