package limits

import (
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// matches reports whether one of a zone's sets of matchers matches a request, or does with its
// method in upper case. Caddy's matchers know case, and backends such as Flask and Django don't, so
// post would pass uncounted. Exceptions and reserves take the method as it came.
func matches(sets caddyhttp.MatcherSets, r *http.Request) (bool, error) {
	ok, err := sets.AnyMatchWithError(r)
	upper := strings.ToUpper(r.Method)
	if ok || err != nil || upper == r.Method {
		return ok, err
	}
	if repl := reqkey.ReplacerOf(r); repl != nil { // of which expressions ask the method
		const name = "http.request.method"
		repl.Set(name, upper)
		defer repl.Delete(name)
	}
	r = r.WithContext(r.Context()) // a copy
	r.Method = upper
	return sets.AnyMatchWithError(r)
}
