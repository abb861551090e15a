package limits

import (
	"net/http"
	"slices"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// appendEarlyKey is AppendKey in early data (0-RTT), whose sender can be forged. Where an address
// may have had a part in the key, or in which requests the zone is for, the key is one of its own,
// and a denial by it is 425. An address may also be why the key is empty, so the request is counted
// by the client's address in place of not at all.
func (z *Zone) appendEarlyKey(dst []byte, r *http.Request, vars map[string]any) (key []byte, empty, none bool) {
	start, proven := len(dst), z.isProven(r)
	key, empty = z.Template.Append(dst, r, vars)
	if !proven {
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

// A provenance is what an address may have a part in, of which requests in early data a zone is
// for, its limits and its costs.
type provenance uint8

const (
	proven   provenance = iota // nothing
	asItCame                   // nothing, where no handler has changed the request
	unproven
)

// provenanceOf is known once a zone has its limits and costs.
func provenanceOf(z *Zone) provenance {
	var numbers []*reqkey.Number
	if z.cost != nil {
		numbers = slices.Clone(z.cost.numbers)
	}
	for i := range z.AllLimits {
		numbers = append(numbers, z.AllLimits[i].Number)
	}
	sets := slices.Concat(slices.Concat(z.Reserved...), z.Matchers, z.Except)
	switch {
	case slices.ContainsFunc(numbers, func(n *reqkey.Number) bool { return n != nil && !n.IsProven() }), !config.MatchersAreProven(sets):
		return unproven
	case len(sets) > 0:
		return asItCame
	}
	return proven
}

// isProven reports whether an address has no part in how a request in early data is counted.
func (z *Zone) isProven(r *http.Request) bool {
	return z.provenance == proven || z.provenance == asItCame && config.IsAsItCame(r)
}
