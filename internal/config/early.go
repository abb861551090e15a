package config

import (
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// ProvenIn returns the matchers of a set in whose answer no address has a part, in a request that
// IsAsItCame: those of the method and the path. A handler before may have made variables and
// headers of an address, and what a module's own matcher asks for is unknown.
func ProvenIn(set caddyhttp.MatcherSet) (proven caddyhttp.MatcherSet) {
	for _, m := range set {
		if isProven(m) {
			proven = append(proven, m)
		}
	}
	return proven
}

func isProven(m any) bool {
	switch m := m.(type) {
	case caddyhttp.MatchMethod, *caddyhttp.MatchMethod, caddyhttp.MatchPathRE, *caddyhttp.MatchPathRE:
		return true
	case caddyhttp.MatchPath:
		return !slices.ContainsFunc(m, hasPlaceholder)
	case *caddyhttp.MatchPath:
		return !slices.ContainsFunc(*m, hasPlaceholder)
	case *caddyhttp.MatchNot:
		return !slices.ContainsFunc(slices.Concat(m.MatcherSets...), func(m any) bool { return !isProven(m) })
	}
	return false
}

func hasPlaceholder(path string) bool { return strings.Contains(path, "{") }

// IsAsItCame reports whether no handler has changed the method or the path of a request, which it
// may have made of an address.
func IsAsItCame(r *http.Request) bool {
	came, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	return ok && came.Method == r.Method && came.URL.Path == r.URL.Path && came.URL.RawPath == r.URL.RawPath
}
