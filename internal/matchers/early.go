package matchers

import (
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// Proven reports whether one of the sets matches a request. One that would end early data with 425,
// as Caddy's matchers of addresses do, does not.
func Proven(sets caddyhttp.MatcherSets, r *http.Request) (bool, error) {
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
