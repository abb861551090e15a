package limits

import (
	"net/http"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// matchesUpper reports whether a request whose method has lower-case letters is one that the zone
// is for with its method in upper case. Caddy's matchers know case, and backends such as Flask and
// Django don't, so post would pass uncounted. Exceptions and reserves take the method as it came.
func (z *Zone) matchesUpper(r *http.Request) (bool, error) {
	upper := strings.ToUpper(r.Method)
	if upper == r.Method {
		return false, nil
	}
	if repl := reqkey.ReplacerOf(r); repl != nil { // of which expressions ask the method
		const name = "http.request.method"
		repl.Set(name, upper)
		defer repl.Delete(name)
	}
	r = r.WithContext(r.Context()) // a copy
	r.Method = upper
	return z.matches(r)
}
