package reqkey

import "slices"

// OnlyClientsIn returns a header, a cookie or a parameter of the query in a template of which
// nothing else tells clients apart, "" where something else does or nothing. A header that claims
// an address is left out: Check warns of it.
func OnlyClientsIn(template string) (name string) {
	parts, _ := parse(template) // Check reports the error
	for _, p := range parts {
		switch {
		case p.literal || !p.tells:
		case p.several == nil && p.text != headerPrefix+"Cookie" || claimsAddress(p.text):
			return ""
		default:
			name = p.text
		}
	}
	return name
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
	return template == "" || HasAddress(template) || TellsNobody(template)
}
