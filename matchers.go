package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/hints"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// privateRanges is Caddy's word for the networks that are not on the Internet.
const privateRanges = "private_ranges"

// match adds a matcher set. One set of several must match.
func (p *handlerParser) match(z *Zone) error {
	set, err := p.matcherSet()
	if err != nil {
		return err
	}
	if len(set) == 0 {
		return errors.New("it is empty; write matchers into it, like `path /login`, or remove it to match all requests")
	}
	z.MatcherSetsRaw = append(z.MatcherSetsRaw, set)
	return nil
}

// except adds a matcher set of requests that are not limited.
func (p *handlerParser) except(z *Zone) error {
	set, err := p.addresses()
	if set == nil && err == nil {
		set, err = p.matcherSet(privateRanges)
	}
	if err != nil {
		return err
	}
	if len(set) == 0 {
		return errors.New("it is empty; write what is not limited, like `except private_ranges`, `except 203.0.113.0/24`, `except @internal`, or matchers in a block")
	}
	z.ExceptRaw = append(z.ExceptRaw, set)
	return nil
}

// addresses reads addresses and ranges of them as a matcher of the client's address. It returns nil
// where the first value is neither.
func (p *handlerParser) addresses() (caddy.ModuleMap, error) {
	if !p.NextArg() {
		return nil, nil
	}
	first := p.Val()
	p.Prev()
	if first != privateRanges && !looksLikeRange(first) {
		return nil, nil
	}
	values := p.RemainingArgs()
	for _, value := range values {
		if err := checkRange(value); value != privateRanges && err != nil {
			return nil, err
		}
	}
	words := []caddyfile.Token{{Text: "client_ip"}}
	for _, value := range values {
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
	if strings.HasPrefix(word, "{env.") || strings.HasPrefix(word, "{file.") {
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

// matcherSet reads a named matcher, as @name, or matchers: one on this line, or several in a block.
// also are words that are no matchers and could stand in their place.
func (p *handlerParser) matcherSet(also ...string) (caddy.ModuleMap, error) {
	if set, ok, err := p.namedMatcher(); ok || err != nil {
		return set, err
	}
	segment := p.NextSegment()
	if err := checkMatchers(caddyfile.NewDispenser(slices.Clone(segment)), also); err != nil {
		return nil, err
	}
	d := caddyfile.NewDispenser(segment)
	d.Next()
	return caddyhttp.ParseCaddyfileNestedMatcherSet(d)
}

// namedMatcher reads the name of one of the site's matchers. ok is false where there is none.
func (p *handlerParser) namedMatcher() (set caddy.ModuleMap, ok bool, err error) {
	option := p.Val()
	if !p.NextArg() {
		return nil, false, nil
	}
	token := p.Token()
	if !strings.HasPrefix(token.Text, "@") {
		p.Prev()
		return nil, false, nil
	}
	if p.NextArg() {
		return nil, false, fmt.Errorf("more than one value comes with %[2]s; write `%[1]s %[2]s`, and what else there is on a line of its own", option, spelling.Clip(token.Text))
	}
	if p.site == nil {
		return nil, false, fmt.Errorf("named matchers are known in the sites of a Caddyfile only; write the matchers of %s themselves, in a block", spelling.Clip(token.Text))
	}
	set, ok, err = p.site.WithDispenser(caddyfile.NewDispenser([]caddyfile.Token{token})).MatcherToken()
	if err != nil {
		return nil, false, fmt.Errorf("there is no matcher %[1]s in this site; define it beside rate_limit, like `%[1]s path /login`", spelling.Clip(token.Text))
	}
	return set, ok, nil
}

// checkMatchers looks for matchers that don't exist: Caddy's error has neither their line nor the
// mend.
func checkMatchers(d *caddyfile.Dispenser, also []string) error {
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
		return placeAt(token, err)
	}
	return nil
}
