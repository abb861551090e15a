// Matchers within an option of a Caddyfile: named ones of the site, others on the option's line or
// in its block, and addresses.

package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// privateRanges is Caddy's word for the networks that are not on the Internet.
const privateRanges = "private_ranges"

// ParseMatchers reads the matcher set of an option, which is the current token: a named matcher of
// the site, as @name, or matchers, one on this line or several in a block. It is empty where there
// is nothing. The site is nil where it is unknown. Errors suggest the words of also beside
// matchers.
func ParseMatchers(d *caddyfile.Dispenser, site *httpcaddyfile.Helper, also ...string) (caddy.ModuleMap, error) {
	if set, ok, err := lookUpMatcher(d, site); ok || err != nil {
		return set, err
	}
	in := matcherScope{option: d.Val(), also: also}
	segment := d.NextSegment()
	if err := in.checkNames(segment); err != nil {
		return nil, err
	}
	d = caddyfile.NewDispenser(segment)
	d.Next()
	return caddyhttp.ParseCaddyfileNestedMatcherSet(d)
}

// ParseOrAddresses reads addresses of clients and ranges of them as a matcher, and anything else as
// ParseMatchers does.
func ParseOrAddresses(d *caddyfile.Dispenser, site *httpcaddyfile.Helper) (caddy.ModuleMap, error) {
	if d.NextArg() {
		first := d.Token()
		d.Prev()
		if first.Text == privateRanges || looksLikeRange(first.Text) && !isExpression(first) {
			return addressMatcher(d.RemainingArgs())
		}
	}
	return ParseMatchers(d, site, privateRanges)
}

// lookUpMatcher reads the name of one of the site's matchers. ok is false where there is none.
func lookUpMatcher(d *caddyfile.Dispenser, site *httpcaddyfile.Helper) (set caddy.ModuleMap, ok bool, err error) {
	option := d.Val()
	if !d.NextArg() {
		return nil, false, nil
	}
	token := d.Token()
	switch {
	case !strings.HasPrefix(token.Text, "@"):
		d.Prev()
		return nil, false, nil
	case d.NextArg():
		return nil, false, fmt.Errorf("more than one value comes with %[2]s; write `%[1]s %[2]s`, and what else there is on a line of its own", option, spelling.Clip(token.Text))
	}
	set, err = NamedMatcher(token, option, site)
	return set, err == nil, err
}

// NamedMatcher returns a named matcher of the site by its token, the value of an option.
func NamedMatcher(token caddyfile.Token, option string, site *httpcaddyfile.Helper) (caddy.ModuleMap, error) {
	name := spelling.Clip(token.Text)
	if site == nil {
		if option == "reserve" {
			return nil, fmt.Errorf("named matchers are known in the sites of a Caddyfile only; write the matchers of %s into match, in JSON", name)
		}
		return nil, fmt.Errorf("named matchers are known in the sites of a Caddyfile only; write the matchers of %s themselves, in a block", name)
	}
	set, _, err := site.WithDispenser(caddyfile.NewDispenser([]caddyfile.Token{token})).MatcherToken()
	if err == nil {
		return set, nil
	}
	return nil, fmt.Errorf("there is no matcher %[1]s in this site; define it beside rate_limit, like `%[1]s path /login`", name)
}

// matcherScope is where the names of matchers stand: in which option, match or except, and whether
// within not. Errors suggest the words of also beside matchers.
type matcherScope struct {
	option string
	also   []string
	not    bool
}

// checkNames looks for what is wrong with the matchers of a segment, which begins with the option
// or with not: Caddy's errors have neither their line nor what to write instead.
func (in matcherScope) checkNames(segment []caddyfile.Token) error {
	d := caddyfile.NewDispenser(slices.Clone(segment))
	d.Next()
	for nesting := d.Nesting(); d.NextArg() || d.NextBlock(nesting); {
		token := d.Token()
		if token.Quoted() {
			continue // an expression
		}
		segment := d.NextSegment()
		hasValue := slices.ContainsFunc(segment[1:], func(t caddyfile.Token) bool { return t.Text != "" })
		if err := in.checkName(token.Text, !hasValue); err != nil {
			at := caddyfile.NewDispenser([]caddyfile.Token{token})
			at.Next()
			return at.WrapErr(err)
		}
		if token.Text == "not" {
			if err := (matcherScope{in.option, in.also, true}).checkNames(segment); err != nil {
				return err
			}
		}
	}
	return nil
}

// needValues are matchers that load without a value, or with an empty one, and match all requests
// or none then, with an example of one.
var needValues = map[string]string{
	"path": "/health", "path_regexp": "^/api/", "host": "example.com", "method": "OPTIONS", "client_ip": "203.0.113.0/24", "remote_ip": "203.0.113.0/24",
}

func needsValue(name string) error {
	what := "nothing"
	if name == "path_regexp" {
		what = "everything"
	}
	return fmt.Errorf("%[1]s has no value, so it matches %[3]s; write one, like `%[1]s %[2]s`, or remove it", name, needValues[name], what)
}

// CheckMatchers reports what is wrong with a matcher set in JSON that loads and matches every
// request or none, whatever it is for.
func CheckMatchers(set caddy.ModuleMap) error {
	if len(set) == 0 {
		return errors.New("an empty set matches every request; write matchers into it, or remove it")
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if name == "not" {
			var sets []caddy.ModuleMap
			if json.Unmarshal(set[name], &sets) != nil {
				continue // Caddy says what is wrong
			}
			if len(sets) == 0 {
				return errors.New("not has no value, so it matches every request; write matchers into it, or remove it")
			}
			for _, set := range sets {
				if err := CheckMatchers(set); err != nil {
					return fmt.Errorf("within not: %w", err)
				}
			}
		}
		if needValues[name] != "" && isEmptyMatcher(set[name]) {
			return needsValue(name)
		}
	}
	return nil
}

// isEmptyMatcher reports whether the JSON of a matcher in needValues has no value.
func isEmptyMatcher(raw json.RawMessage) bool {
	var list []string
	var object struct {
		Ranges  []any
		Pattern string
	}
	hasValue := func(value string) bool { return value != "" }
	return json.Unmarshal(raw, &list) == nil && !slices.ContainsFunc(list, hasValue) ||
		json.Unmarshal(raw, &object) == nil && len(object.Ranges) == 0 && object.Pattern == ""
}

// checkName reports what is wrong with the name of a matcher, which stands alone if it has no
// values, or empty ones.
func (in matcherScope) checkName(name string, alone bool) error {
	clipped := spelling.Clip(name)
	switch {
	case alone && needValues[name] != "":
		return needsValue(name)
	case isMatcherName(name):
		return nil
	case name == "*":
		return errors.New("there is no matcher * here; a zone without match limits all requests, and one without except leaves none alone: remove it")
	case strings.HasPrefix(name, "/"):
		return fmt.Errorf("there is no matcher %[1]q; write `path %[1]s`", clipped)
	case strings.HasPrefix(name, "@") && in.not:
		return fmt.Errorf("a named matcher can't stand within not; write `%s %[2]s` on a line of its own, which does the opposite, or what %[2]s consists of", opposite(in.option), clipped)
	case strings.HasPrefix(name, "@"):
		return fmt.Errorf("a named matcher can't stand in a block; write `%[1]s %[2]s` on a line of its own, or what %[2]s consists of", in.option, clipped)
	case name == privateRanges || looksLikeRange(name) && checkRange(name) == nil:
		return fmt.Errorf("there is no matcher %[1]q; write `client_ip %[1]s` here%[2]s", clipped, in.orAddresses(clipped))
	}
	known := slices.Clone(in.also)
	for _, module := range caddy.GetModules(strings.TrimSuffix(matcherNamespace, ".")) {
		known = append(known, module.ID.Name())
	}
	_, err := ChooseName[int](cmp.Or(name, "?"), known)
	return err
}

// orAddresses returns the second suggestion for an address among matchers, "" if there is none.
func (in matcherScope) orAddresses(word string) string {
	if in.not || in.option != "except" {
		return ""
	}
	return fmt.Sprintf(", or `except %s` on a line of its own", word)
}

// opposite returns the option that limits what this one leaves alone, or the other way round.
func opposite(option string) string {
	if option == "except" {
		return "match"
	}
	return "except"
}

const matcherNamespace = "http.matchers."

func isMatcherName(name string) bool {
	_, err := caddy.GetModule(matcherNamespace + name)
	return err == nil
}

// addressMatcher returns a matcher of the client's address.
func addressMatcher(values []string) (caddy.ModuleMap, error) {
	words := []caddyfile.Token{{Text: "client_ip"}}
	for i, value := range values {
		if strings.HasPrefix(value, "@") || isMatcherName(value) {
			return nil, fmt.Errorf("addresses stand on a line of their own; write `except %s` on another one", spelling.Clip(strings.Join(values[i:], " ")))
		}
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

// isExpression reports whether a token is an expression: it is quoted, and no address or path has
// these characters.
func isExpression(token caddyfile.Token) bool {
	return token.Quoted() && strings.ContainsAny(token.Text, "(=<>!&|")
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

// OtherClasses returns which of some sets don't match a request, one bit each. One that fails
// matches nobody.
func OtherClasses(all []caddyhttp.MatcherSets, r *http.Request) (others uint32) {
	for i, sets := range all {
		if ok, err := sets.AnyMatchWithError(r); !ok || err != nil {
			others |= 1 << i
		}
	}
	return others
}
