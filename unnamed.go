package ratelimit

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-tide/ratelimit/internal/config"
)

// nameUnnamed returns the name of an unnamed limit with these rates, which stands at token. alike
// is what alikeIn returned.
func nameUnnamed(
	h httpcaddyfile.Helper, z *Zone, token caddyfile.Token, limits []config.Rate, matcher caddy.ModuleMap, alike map[string]int,
) (string, error) {
	site, ok := siteOf(h)
	name := config.NameOf(site, limits)
	if !ok || alike[name] > 1 {
		shape, err := z.identity(matcher, h.IsNamedRoute())
		if err != nil {
			return "", err
		}
		name = config.HashedName(name, shape)
	}
	taken := perAdaptation[map[string]caddyfile.Token](h, "rate_limit.unnamed")
	first := name
	for n := 2; taken[name].Line != 0; n++ {
		name = config.NumberedName(first, n)
	}
	taken[name] = token
	if zone, taken := perAdaptation[config.Registry](h, "rate_limit.zones")[name]; taken {
		return "", fmt.Errorf("zone %q at %s has the name of this unnamed limit; give that zone another one, like login", name, zone.Place)
	}
	return name, nil
}

// identity returns what tells limits with the same rates apart: which requests they count and by
// what. Named routes are adapted apart from sites, without knowing what names are taken there, so
// they are part of it for the case that the site is unknown.
func (z *Zone) identity(matcher caddy.ModuleMap, namedRoute bool) ([]byte, error) {
	text, err := json.Marshal(struct {
		Matcher    caddy.ModuleMap
		Zone       Zone
		NamedRoute bool
	}{matcher, Zone{
		MatcherSetsRaw: z.MatcherSetsRaw, ExceptRaw: z.ExceptRaw, Key: z.Key, EmptyKey: z.EmptyKey, IPv4Prefix: z.IPv4Prefix, IPv6Prefix: z.IPv6Prefix,
		Window: z.Window, MaxEvents: z.MaxEvents, Algorithm: z.Algorithm, Buckets: z.Buckets, Bandwidth: z.Bandwidth,
		CountDenied: z.CountDenied, CountResponses: z.CountResponses,
	}, namedRoute})
	if err != nil {
		return nil, fmt.Errorf("naming the limit: %w", err)
	}
	return text, nil
}

// siteOf returns the address of the site that a directive is in, as it is written: the first one
// where there are several, and what it binds to, as in `:8080@127.0.0.1`. ok is false where that
// can't be found out.
//
// A directive doesn't know its site, but a name that leaves the site out has to count limits over
// all sites, and then removing one site renames the limits of others. Caddy exports nothing that
// tells the site, so it is read from the Helper's unexported field parentBlock, by reflection, here
// and in alikeIn.
//
// With a Caddy without that field, names have no site: every unnamed limit is renamed, and starts
// at zero. Nothing else breaks. TestNamesNeedTheSiteOfCaddy fails with such a Caddy.
//
// The site of a named route is &(name).
func siteOf(h httpcaddyfile.Helper) (address string, ok bool) {
	address, ok = firstKey(reflect.ValueOf(h))
	if ok && h.IsNamedRoute() {
		address = "&(" + address + ")"
	}
	for _, to := range bindsOf(reflect.ValueOf(h)) {
		address += "@" + to
	}
	return address, ok
}

// bindsOf returns the arguments of a site's bind. Two sites may have one address otherwise.
func bindsOf(helper reflect.Value) (all []string) {
	segments := fieldOf(fieldOf(helper, "parentBlock", reflect.Struct), "Segments", reflect.Slice)
	if !segments.IsValid() {
		return nil
	}
	for i := range segments.Len() {
		tokens := texts(segments.Index(i))
		if len(tokens) == 0 || tokens[0] != "bind" {
			continue
		}
		if block := slices.Index(tokens, "{"); block > 0 {
			tokens = tokens[:block]
		}
		all = append(all, tokens[1:]...)
	}
	return all
}

func firstKey(helper reflect.Value) (text string, ok bool) {
	keys := fieldOf(fieldOf(helper, "parentBlock", reflect.Struct), "Keys", reflect.Slice)
	if !keys.IsValid() || keys.Len() == 0 {
		return "", false
	}
	key := fieldOf(keys.Index(0), "Text", reflect.String)
	if !key.IsValid() || key.Len() == 0 {
		return "", false
	}
	return key.String(), true
}

// fieldOf returns a field of a struct, the zero Value if there is none of that name and kind.
func fieldOf(of reflect.Value, name string, kind reflect.Kind) reflect.Value {
	if of.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	if f := of.FieldByName(name); f.IsValid() && f.Kind() == kind {
		return f
	}
	return reflect.Value{}
}

// alikeIn counts how many unnamed limits of the directive's site have a name in common as long as
// nothing tells them apart but their rates. It counts when it comes to a site first, since Caddy
// takes matchers out of what it has read.
func alikeIn(h httpcaddyfile.Helper) map[string]int {
	block := fieldOf(reflect.ValueOf(h), "parentBlock", reflect.Struct)
	segments := fieldOf(block, "Segments", reflect.Slice)
	site, ok := siteOf(h)
	if !ok || !segments.IsValid() {
		return nil
	}
	first := fieldOf(block, "Keys", reflect.Slice).Index(0)
	where := fmt.Sprint(site, fieldOf(first, "File", reflect.String), ":", fieldOf(first, "Line", reflect.Int))
	sites := perAdaptation[map[string]map[string]int](h, "rate_limit.sites")
	if alike, known := sites[where]; known {
		return alike
	}
	alike := map[string]int{}
	for i := range segments.Len() {
		countUnnamed(alike, site, texts(segments.Index(i)))
	}
	sites[where] = alike
	return alike
}

// texts returns those of tokens.
func texts(tokens reflect.Value) (all []string) {
	if tokens.Kind() != reflect.Slice {
		return nil
	}
	for i := range tokens.Len() {
		if text := fieldOf(tokens.Index(i), "Text", reflect.String); text.IsValid() {
			all = append(all, text.String())
		}
	}
	return all
}

// countUnnamed counts the unnamed limits among the tokens of a directive, however deep in blocks.
func countUnnamed(alike map[string]int, site string, tokens []string) {
	for i, token := range tokens {
		if token != "rate_limit" {
			continue
		}
		args := tokens[i+1:]
		if len(args) > 0 && (args[0] == "*" || strings.HasPrefix(args[0], "/") || strings.HasPrefix(args[0], "@")) {
			args = args[1:]
		}
		var limits []config.Rate
		for _, arg := range args {
			r, err := config.ParseRate(arg)
			if err != nil {
				break
			}
			r.Limit = carried(r.Limit)
			limits = append(limits, r)
		}
		if len(limits) > 0 {
			alike[config.NameOf(site, config.Sorted(limits))]++
		}
	}
}
