// Package matchers reads matchers within an option of a Caddyfile: named ones of the site, others
// on the option's line or in its block, and addresses.
package matchers

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/hints"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// privateRanges is Caddy's word for the networks that are not on the Internet.
const privateRanges = "private_ranges"

// Parse reads the matcher set of an option, which is the current token: a named matcher of the
// site, as @name, or matchers, one on this line or several in a block. It is empty where there is
// nothing. The site is nil where it is unknown.
func Parse(d *caddyfile.Dispenser, site *httpcaddyfile.Helper) (caddy.ModuleMap, error) {
	return parse(d, site)
}

// ParseOrAddresses reads addresses of clients and ranges of them as a matcher, and anything else as
// Parse does.
func ParseOrAddresses(d *caddyfile.Dispenser, site *httpcaddyfile.Helper) (caddy.ModuleMap, error) {
	if d.NextArg() {
		first := d.Val()
		d.Prev()
		if first == privateRanges || looksLikeRange(first) {
			return addresses(d.RemainingArgs())
		}
	}
	return parse(d, site, privateRanges)
}

// parse is Parse where other words could stand as well, which errors then suggest.
func parse(d *caddyfile.Dispenser, site *httpcaddyfile.Helper, also ...string) (caddy.ModuleMap, error) {
	if set, ok, err := named(d, site); ok || err != nil {
		return set, err
	}
	segment := d.NextSegment()
	if err := checkNames(caddyfile.NewDispenser(slices.Clone(segment)), also); err != nil {
		return nil, err
	}
	d = caddyfile.NewDispenser(segment)
	d.Next()
	return caddyhttp.ParseCaddyfileNestedMatcherSet(d)
}

// named reads the name of one of the site's matchers. ok is false where there is none.
func named(d *caddyfile.Dispenser, site *httpcaddyfile.Helper) (set caddy.ModuleMap, ok bool, err error) {
	option := d.Val()
	if !d.NextArg() {
		return nil, false, nil
	}
	token := d.Token()
	name := spelling.Clip(token.Text)
	switch {
	case !strings.HasPrefix(token.Text, "@"):
		d.Prev()
		return nil, false, nil
	case d.NextArg():
		return nil, false, fmt.Errorf("more than one value comes with %[2]s; write `%[1]s %[2]s`, and what else there is on a line of its own", option, name)
	case site == nil:
		return nil, false, fmt.Errorf("named matchers are known in the sites of a Caddyfile only; write the matchers of %s themselves, in a block", name)
	}
	set, ok, err = site.WithDispenser(caddyfile.NewDispenser([]caddyfile.Token{token})).MatcherToken()
	if err != nil {
		return nil, false, fmt.Errorf("there is no matcher %[1]s in this site; define it beside rate_limit, like `%[1]s path /login`", name)
	}
	return set, ok, nil
}

// checkNames looks for matchers that don't exist: Caddy's error has neither their line nor what to
// write instead.
func checkNames(d *caddyfile.Dispenser, also []string) error {
	const namespace = "http.matchers."
	d.Next()
	for nesting := d.Nesting(); d.NextArg() || d.NextBlock(nesting); {
		token := d.Token()
		if token.Quoted() {
			continue // an expression
		}
		d.NextSegment()
		if _, err := caddy.GetModule(namespace + token.Text); err == nil {
			continue
		}
		known := slices.Clone(also)
		for _, module := range caddy.GetModules(strings.TrimSuffix(namespace, ".")) {
			known = append(known, module.ID.Name())
		}
		_, err := hints.Choose[int](cmp.Or(token.Text, "?"), known)
		at := caddyfile.NewDispenser([]caddyfile.Token{token})
		at.Next()
		return at.WrapErr(err)
	}
	return nil
}

// addresses returns a matcher of the client's address.
func addresses(values []string) (caddy.ModuleMap, error) {
	words := []caddyfile.Token{{Text: "client_ip"}}
	for _, value := range values {
		if err := checkRange(value); err != nil {
			return nil, err
		}
		words = append(words, caddyfile.Token{Text: value})
	}
	m := new(caddyhttp.MatchClientIP) // which knows the private ranges
	if err := m.UnmarshalCaddyfile(caddyfile.NewDispenser(words)); err != nil {
		return nil, err
	}
	return caddy.ModuleMap{"client_ip": caddyconfig.JSON(m, nil)}, nil
}

// looksLikeRange reports whether a word is meant for an address. No matcher's name has these
// characters.
func looksLikeRange(word string) bool {
	return strings.ContainsAny(word, ".:/{") || word != "" && word[0] >= '0' && word[0] <= '9'
}

// checkRange reports what is wrong with an address or a range of them. Placeholders of the
// environment and of files are filled in when the configuration is loaded.
func checkRange(word string) error {
	if word == privateRanges || strings.HasPrefix(word, "{env.") || strings.HasPrefix(word, "{file.") {
		return nil
	}
	address, _, _ := strings.Cut(word, "%") // the matcher knows zones
	_, noRange := netip.ParsePrefix(address)
	_, noAddress := netip.ParseAddr(address)
	if noRange != nil && noAddress != nil {
		return fmt.Errorf("%q is neither an address nor a range of them; write them like `except 203.0.113.7 10.0.0.0/8 2001:db8::/32`, and a path like `except path /health`", spelling.Clip(word))
	}
	return nil
}
