package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// NameUnnamed returns the name of an unnamed limit with these rates, which stands at token. alike
// is what AlikeIn returned. shape is what tells limits with the same rates apart: which requests
// they count and by what.
func NameUnnamed(h httpcaddyfile.Helper, shape []byte, token caddyfile.Token, limits []Rate, alike map[string]int) (string, error) {
	site, ok := siteOf(h)
	name := NameOf(site, limits)
	if !ok || alike[name] > 1 {
		name = HashedName(name, shape)
	}
	taken := PerAdaptation[map[string]caddyfile.Token](h, "rate_limit.unnamed")
	first := name
	for n := 2; taken[name].Line != 0; n++ {
		name = NumberedName(first, n)
	}
	taken[name] = token
	if zone, taken := PerAdaptation[Registry](h, "rate_limit.zones")[name]; taken {
		return "", fmt.Errorf("zone %q at %s has the name of this unnamed limit; give that zone another one, like login", name, zone.Place)
	}
	return name, nil
}

// PerAdaptation returns a map that lives as long as one adaptation.
func PerAdaptation[M ~map[string]V, V any](h httpcaddyfile.Helper, name string) M {
	m, ok := h.State[name].(M)
	if !ok {
		m = M{}
		h.State[name] = m
	}
	return m
}

// Carried returns n as it survives Caddy's adapter, which passes numbers through float64: above
// 2^53 they are rounded, and the largest ones come out too large to load. No client reaches either
// number.
func Carried(n int64) int64 { return min(n, 1<<53) }

// siteOf returns the address of the site that a directive is in, as it is written: the first one
// where there are several, and what it binds to, as in `:8080@127.0.0.1`. ok is false where that
// can't be found out.
//
// A directive doesn't know its site, but a name that leaves the site out has to count limits over
// all sites, and then removing one site renames the limits of others. Caddy exports nothing that
// tells the site, so it is read from the Helper's unexported field parentBlock, by reflection, here
// and in AlikeIn.
//
// With a Caddy without that field, names have no site: every unnamed limit is renamed, and starts
// at zero. Nothing else breaks. TestNamesNeedTheSiteOfCaddy fails with such a Caddy.
//
// The site of a named route is &(name).
func siteOf(h httpcaddyfile.Helper) (address string, ok bool) {
	address, ok = FirstKey(reflect.ValueOf(h))
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

// FirstKey returns the first address of a site, as a Helper has it.
func FirstKey(helper reflect.Value) (text string, ok bool) {
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

// AlikeIn counts how many unnamed limits of the directive's site have a name in common as long as
// nothing tells them apart but their rates. It counts when it comes to a site first, since Caddy
// takes matchers out of what it has read.
func AlikeIn(h httpcaddyfile.Helper) map[string]int {
	block := fieldOf(reflect.ValueOf(h), "parentBlock", reflect.Struct)
	segments := fieldOf(block, "Segments", reflect.Slice)
	site, ok := siteOf(h)
	if !ok || !segments.IsValid() {
		return nil
	}
	first := fieldOf(block, "Keys", reflect.Slice).Index(0)
	where := fmt.Sprint(site, fieldOf(first, "File", reflect.String), ":", fieldOf(first, "Line", reflect.Int))
	sites := PerAdaptation[map[string]map[string]int](h, "rate_limit.sites")
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
		var limits []Rate
		for _, arg := range args {
			r, err := ParseRate(arg)
			if err != nil {
				break
			}
			r.Limit = Carried(r.Limit)
			limits = append(limits, r)
		}
		if len(limits) > 0 {
			alike[NameOf(site, Sorted(limits))]++
		}
	}
}
