package config

import (
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
		if early && !isProven(set, r) {
			continue
		}
		if ok, err := set.MatchWithError(r); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// MatchersAreProven reports whether an address has no part in what the sets match in early data.
func MatchersAreProven(sets []caddyhttp.MatcherSet, r *http.Request) bool {
	return !slices.ContainsFunc(sets, func(set caddyhttp.MatcherSet) bool { return !isProven(set, r) })
}

// isProven reports whether a set asks for nothing but the method and the path, and both are as the
// server got them: a handler before may have made them of an address, as it may have made variables
// and headers, and what a module's own matcher asks for is unknown.
func isProven(set caddyhttp.MatcherSet, r *http.Request) bool {
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
			if !MatchersAreProven(m.MatcherSets, r) {
				return false
			}
		default:
			return false
		}
	}
	return isAsItCame(r)
}

func hasPlaceholder(path string) bool { return strings.Contains(path, "{") }

// isAsItCame reports whether no handler has changed the method or the path of a request.
func isAsItCame(r *http.Request) bool {
	came, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	return ok && came.Method == r.Method && came.URL.Path == r.URL.Path && came.URL.RawPath == r.URL.RawPath
}

// MatchesButTooEarly reports whether one of the sets matches a request. One that would end early
// data with 425, as Caddy's matchers of addresses do, does not.
func MatchesButTooEarly(sets caddyhttp.MatcherSets, r *http.Request) (bool, error) {
	for _, set := range sets {
		if ok, err := set.MatchWithError(r); ok || err != nil && !IsTooEarly(err) {
			return ok, err
		}
	}
	return false, nil
}

// IsTooEarly reports whether an error is the answer 425.
func IsTooEarly(err error) bool {
	status, ok := errors.AsType[caddyhttp.HandlerError](err)
	return ok && status.StatusCode == http.StatusTooEarly
}
