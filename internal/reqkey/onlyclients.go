package reqkey

import (
	"slices"
	"strings"
)

// OnlyClientsIn returns a header, a cookie, the query or the body in a template of
// which nothing else tells clients apart but an address, "" where something else does or nothing. A
// header that claims an address is left out: Check warns of it. Beside an address so is one with a
// secret, as backends take only those that they gave out.
func OnlyClientsIn(template string) (name string) {
	parts, _ := parse(template) // Check reports the error
	for _, p := range parts {
		switch {
		case isOfURIOrBody(p.text) && !p.literal:
			name = p.text
		case p.literal || !p.tells || p.address:
		case p.several == nil && p.text != headerPrefix+"Cookie" || claimsAddress(p.text):
			return ""
		case HasAddress(template) && isSecret(p.text) && strings.HasPrefix(p.text, headerPrefix):
			return ""
		default:
			name = p.text
		}
	}
	return name
}

// isOfURIOrBody reports whether a placeholder has the query whole, or the body.
func isOfURIOrBody(name string) bool {
	name, ok := strings.CutPrefix(name, requestPrefix)
	return ok && (slices.Contains([]string{"uri", "uri.query", "orig_uri", "orig_uri.query"}, name) || strings.HasPrefix(name, "body"))
}

// TellsNobody reports whether no part of a template tells clients apart: there is none, or they
// come with every request.
func TellsNobody(template string) bool {
	parts, _ := parse(template)
	return !slices.ContainsFunc(parts, func(p part) bool { return p.tells })
}

// BoundsAll reports whether a zone with such a key, which may be "" for the default, holds for a
// client whatever it sends.
func BoundsAll(template string) bool {
	return template == "" || OnlyClientsIn(template) == "" && (HasAddress(template) || TellsNobody(template))
}
