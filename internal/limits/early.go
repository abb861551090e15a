package limits

import (
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// appendEarlyKey is AppendKey in early data (0-RTT), whose sender can be forged. Where an address
// may have had a part in the key, or in which requests the zone is for, the key is one of its own,
// and a denial by it is 425. An address may also be why the key is empty, so the request is counted
// by the client's address in place of not at all.
func (z *Zone) appendEarlyKey(dst []byte, r *http.Request, vars map[string]any) (key []byte, empty, none bool) {
	start := len(dst)
	key, empty = z.Template.Append(dst, r, vars)
	if !z.isProven(r) {
		key = reqkey.AsUnproven(key, start)
	}
	switch {
	case !empty || z.EmptyKey == config.EmptyShare:
		return key, empty, false
	case z.EmptyKey == config.EmptyDeny:
		return key[:start], true, true
	}
	return z.Template.AppendClientIP(key[:start], r, vars), true, false
}

// isProven reports whether an address has no part in which requests in early data the zone is for,
// and in its limits and costs.
func (z *Zone) isProven(r *http.Request) bool {
	for i := range z.AllLimits {
		if n := z.AllLimits[i].Number; n != nil && !n.IsProven() {
			return false
		}
	}
	for _, sets := range z.Reserved {
		if !config.MatchersAreProven(sets, r) {
			return false
		}
	}
	return z.cost.isProven() && config.MatchersAreProven(z.Matchers, r) && config.MatchersAreProven(z.Except, r)
}
