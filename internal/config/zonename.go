// The names of limits to which a configuration gives none, made and read. Headers, logs and metrics
// have them, and by its name a zone keeps its counts over a reload.
//
// A name is the address of the limit's site and its rates, as in `api.example.com 100/1m`. Where
// that is not enough, a hash and a number follow in parentheses: `a.example 5/1m (74caf5 2)`.
// Options that only tune the limit are no part of it, so that changing them keeps the counters.
//
// It depends on nothing outside of the site. So it is the same on every node that has this site,
// and other sites can come, go and move without changing it.

package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/spelling"
)

const (
	maxName  = 128 // characters of a name that is given
	maxSite  = 64  // characters of a site's address in a name, longer ones are cut and hashed
	maxRates = 40  // the same for the rates
)

// CheckName reports what is wrong with a name that is given: it must fit into header fields and
// lines of a log.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty; write one of printable ASCII, like login")
	case len(name) > maxName:
		return fmt.Errorf("%q is longer than %d characters; write a shorter one", spelling.Clip(name), maxName)
	}
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' {
			return fmt.Errorf("%q holds a character that is not printable ASCII; write letters, digits, - and _, like login", spelling.Clip(name))
		}
		if c == '"' || c == '\\' {
			return fmt.Errorf("%q holds a quote or a backslash; write letters, digits, - and _, like login", spelling.Clip(name))
		}
	}
	return nil
}

// NameOf returns the name of a limit with these rates, in the order of Sorted. The site is "" if
// it is unknown; then, and where the site has another limit of that name, Hashed tells them apart.
func NameOf(site string, limits []Rate) string {
	texts := make([]string, len(limits))
	for i, limit := range limits {
		texts[i] = limit.String()
	}
	name := strings.Join(texts, " ")
	if len(name) > maxRates {
		name = name[:strings.LastIndexByte(name[:maxRates], ' ')+1] + "~" + shortHash([]byte(name), 4)
	}
	if site == "" {
		return name
	}
	return siteText(site) + " " + name
}

// HashedName returns a name from Of with a hash of what tells limits with the same rates apart:
// which requests they count, and by what.
func HashedName(name string, shape []byte) string { return name + " (" + shortHash(shape, 3) + ")" }

// NumberedName returns the name of the n-th of several limits that Of or Hashed give one name.
func NumberedName(name string, n int) string {
	if before, ok := strings.CutSuffix(name, ")"); ok {
		return fmt.Sprintf("%s %d)", before, n)
	}
	return fmt.Sprintf("%s (%d)", name, n)
}

func shortHash(text []byte, bytes int) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:bytes])
}

// siteText returns a site's address as part of a name: in lower case, at most maxSite characters,
// and with every character percent-encoded that a name, a structured field or a placeholder can't
// hold. Different addresses have different texts.
func siteText(address string) string {
	var b strings.Builder
	for _, c := range []byte(strings.ToLower(address)) {
		if c <= ' ' || c > '~' || strings.IndexByte(`"\{}%`, c) >= 0 {
			fmt.Fprintf(&b, "%%%02x", c)
			continue
		}
		b.WriteByte(c)
	}
	text := b.String()
	if len(text) > maxSite {
		return text[:maxSite-9] + "~" + shortHash([]byte(text), 4)
	}
	return text
}

// NameShape returns what the names of limits have in common that differ in their numbers only, ""
// for a name that is given.
func NameShape(name string) string {
	site, limits, suffix := nameParts(name)
	if limits == nil {
		return ""
	}
	for _, r := range limits {
		site += " " + WindowText(r.Window)
	}
	return site + " (" + suffix
}

// nameParts splits a name into the site, the rates and what stands in the parentheses at its end.
// The rates are nil for a name that is given.
func nameParts(name string) (site string, limits []Rate, suffix string) {
	before, suffix, found := strings.Cut(name, " (")
	if found && !strings.HasSuffix(suffix, ")") || strings.Contains(suffix, "(") {
		return "", nil, ""
	}
	for before != "" {
		i := strings.LastIndexByte(before, ' ')
		r, err := ParseRate(before[i+1:])
		if err != nil {
			break
		}
		limits = append(limits, r)
		before = before[:max(i, 0)]
	}
	slices.Reverse(limits)
	return before, limits, strings.TrimSuffix(suffix, ")")
}

// NameBefore returns what the name of an unnamed limit was before its numbers changed, "" if there
// is none or any doubt. The keys of had and now are the names of then and now.
func NameBefore[A any](name string, had, now map[string]A) (before string) {
	shape := NameShape(name)
	if shape == "" {
		return ""
	}
	lacks := func(in map[string]A, other string) bool { // a name of that shape
		_, ok := in[other]
		return !ok && NameShape(other) == shape
	}
	for other := range now {
		if other != name && lacks(had, other) {
			return ""
		}
	}
	for other := range had {
		if lacks(now, other) {
			if before != "" {
				return ""
			}
			before = other
		}
	}
	return before
}
