package config

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// Matches reports whether one of the sets of an exception or a reserve matches a request. In early
// data a set that may go by an address matches nobody, and is not asked.
func Matches(sets caddyhttp.MatcherSets, r *http.Request) (bool, error) {
	early := reqkey.IsEarly(r)
	for _, set := range sets {
		if early && !(isProven(set) && IsAsItCame(r)) {
			continue
		}
		if ok, err := set.MatchWithError(r); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// MatchersAreProven reports whether an address has no part in what the sets match in early data, in
// a request that IsAsItCame.
func MatchersAreProven(sets []caddyhttp.MatcherSet) bool {
	return !slices.ContainsFunc(sets, func(set caddyhttp.MatcherSet) bool { return !isProven(set) })
}

// isProven reports whether a set asks for nothing but the method and the path: a handler before may
// have made variables and headers of an address, and what a module's own matcher asks for is
// unknown.
func isProven(set caddyhttp.MatcherSet) bool {
	for _, m := range set {
		switch m := m.(type) {
		case caddyhttp.MatchMethod, *caddyhttp.MatchMethod, caddyhttp.MatchPathRE, *caddyhttp.MatchPathRE:
		case caddyhttp.MatchPath:
			if slices.ContainsFunc(m, hasPlaceholder) {
				return false
			}
		case *caddyhttp.MatchPath:
			if slices.ContainsFunc(*m, hasPlaceholder) {
				return false
			}
		case *caddyhttp.MatchNot:
			if !MatchersAreProven(m.MatcherSets) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func hasPlaceholder(path string) bool { return strings.Contains(path, "{") }

// IsAsItCame reports whether no handler has changed the method or the path of a request, which it
// may have made of an address.
func IsAsItCame(r *http.Request) bool {
	came, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	return ok && came.Method == r.Method && came.URL.Path == r.URL.Path && came.URL.RawPath == r.URL.RawPath
}

// AnyMatches reports whether one of the sets matches a request. One that would end early data with
// 425, as Caddy's matchers of addresses do, does not; early is the error of the first that would.
func AnyMatches(sets caddyhttp.MatcherSets, r *http.Request) (ok bool, early, err error) {
	for _, set := range sets {
		ok, err := set.MatchWithError(r)
		switch {
		case IsTooEarly(err):
			early = cmp.Or(early, err)
		case ok || err != nil:
			return ok, early, err
		}
	}
	return false, early, nil
}

// IsTooEarly reports whether an error is the answer 425.
func IsTooEarly(err error) bool {
	status, ok := errors.AsType[caddyhttp.HandlerError](err)
	return ok && status.StatusCode == http.StatusTooEarly
}
