// Package reqkey makes the key of a request: the bytes that say whose count it is.
//
// A key comes from a template such as {client_ip} or {http.request.host}/{http.request.header.X}.
// Compile prepares a template, Append makes the key of a request, and Check finds the slips that
// people make in templates.
package reqkey

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// Default is the template for one count a client. A Caddyfile calls it {client_ip}.
const Default = "{" + clientIPName + "}"

// A key is the values of its placeholders, one after the other. They are tagged, so that no two
// lists of values give the same bytes. Literal text of the template is the same in every key and is
// left out:
//
//	00                      a template without placeholders; alone
//	01 <uvarint n> <n bytes>  text
//	02                      requests with several values for a placeholder; alone
//	04 <1 to 4 bytes>         the network of an IPv4 address
//	06 <1 to 16 bytes>        the network of an IPv6 address
//	ff <address>            a client IP in place of an empty key
//
// The last comes first in a key: so one in place of an empty key never meets an ordinary one.
const (
	tagShared    = 0x00
	tagText      = 0x01
	tagAmbiguous = 0x02
	tagIPv4      = 0x04
	tagIPv6      = 0x06
	tagClientIP  = 0xff
)

// A Template turns requests into keys. It does not change after Compile and is safe for concurrent
// use.
//
// A value that is an IP address, wherever it comes from, is unmapped, stripped of its zone and cut
// to its network. Host and path are brought to one spelling, so a client can't have several keys by
// writing them differently.
//
// A key is empty when all values that tell clients apart are. Those that come with every request
// (its host, method, path, the environment) don't tell: without that header,
// {http.request.host}:{http.request.header.X-Api-Key} must not be one count for all who leave it
// out. The key of a template with only such placeholders is empty when all of them are. The key of
// a template without placeholders never is.
type Template struct {
	parts  []part
	v4bits int
	v6bits int
	// v4mask and v4bytes cut an IPv4 address to its network, and to the bytes which that needs.
	v4mask  uint32
	v4bytes int
	// clientIP is set where the client's address is the only placeholder.
	clientIP bool
	// proven is set where no value can go by an address, see isProven.
	proven bool
	shared bool   // no placeholder
	fixed  []byte // then the key of every request
}

// A part of a template is literal text or a placeholder.
type part struct {
	// text is the literal, or the name of the placeholder.
	text    string
	literal bool
	// tells is set where the value tells clients apart.
	tells bool
	// address is set for placeholders made of the client's or the peer's address.
	address bool
	// read reads the value from the request. nil leaves that to the replacer.
	read reader
	// form brings a value to one spelling. nil leaves it as it is.
	form func(r *http.Request, value string) string
	// several says where a request has several values; nil never.
	several ambiguity
}

// Compile compiles a template that groups IPv4 addresses by v4bits (1 to 32) and IPv6 addresses by
// v6bits (1 to 128). A backslash escapes braces, as everywhere in Caddy.
func Compile(template string, v4bits, v6bits int) (*Template, error) {
	if v4bits < 1 || v4bits > 32 {
		return nil, fmt.Errorf("an IPv4 prefix has 1 to 32 bits, not %d", v4bits)
	}
	if v6bits < 1 || v6bits > 128 {
		return nil, fmt.Errorf("an IPv6 prefix has 1 to 128 bits, not %d", v6bits)
	}
	parts, err := parse(template)
	if err != nil {
		return nil, err
	}
	t := &Template{parts: parts, v4bits: v4bits, v6bits: v6bits, proven: true, fixed: []byte{tagShared}}
	t.v4mask, t.v4bytes = ^(math.MaxUint32 >> v4bits), (v4bits+7)/8
	tells := false
	placeholders := 0
	for i := range parts {
		if parts[i].literal {
			continue
		}
		placeholders++
		t.clientIP = placeholders == 1 && parts[i].text == clientIPName
		tells = tells || parts[i].tells
		t.proven = t.proven && isProven(parts[i].text)
	}
	t.shared = placeholders == 0
	for i := range parts {
		parts[i].tells = parts[i].tells || !tells
	}
	return t, nil
}

// Fixed returns a template that makes the same key of every request; without one it is empty. It
// keeps key.
func Fixed(key []byte) *Template { return &Template{shared: true, fixed: key} }

// parse splits a template by the rules of Caddy's replacer, except that a brace that is never
// closed is an error.
func parse(template string) ([]part, error) {
	var parts []part
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			parts = append(parts, part{literal: true, text: literal.String()})
			literal.Reset()
		}
	}
	for rest := template; rest != ""; {
		switch {
		case strings.HasPrefix(rest, `\{`), strings.HasPrefix(rest, `\}`):
			literal.WriteByte(rest[1])
			rest = rest[2:]
		case rest[0] == '{':
			name, after, ok := strings.Cut(rest[1:], "}")
			if !ok {
				return nil, fmt.Errorf("the placeholder %q is not closed; a literal brace is written \\{", rest)
			}
			if name == "" {
				return nil, errors.New("the placeholder {} has no name")
			}
			flush()
			parts = append(parts, newPlaceholder(name))
			rest = after
		default:
			literal.WriteByte(rest[0])
			rest = rest[1:]
		}
	}
	flush()
	return parts, nil
}

// countsAddresses reports whether the client's address is in the keys.
func (t *Template) countsAddresses() bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return !p.literal && p.text == clientIPName })
}

// IsProven reports whether no value of the keys can go by an address that early data may have
// forged.
func (t *Template) IsProven() bool { return t.proven }

// Vars returns the variables of a request, nil outside of Caddy. A value of a context is looked for
// in one context after the other, so it is done once a request.
func Vars(r *http.Request) map[string]any {
	vars, _ := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	return vars
}

// Append appends the key of a request with these variables. Every key begins with a tag, also an
// empty one, which so can serve as one count for all who have none.
func (t *Template) Append(dst []byte, r *http.Request, vars map[string]any) (key []byte, empty bool) {
	if t.shared {
		return append(dst, t.fixed...), len(t.fixed) == 0
	}
	if t.clientIP { // most are, and need nothing of what follows
		if value, _ := vars[caddyhttp.ClientIPVarKey].(string); value != "" {
			return t.appendValue(dst, value), false
		}
	}
	empty = true
	start := len(dst)
	var repl *caddy.Replacer
	for i := range t.parts {
		p := &t.parts[i]
		if p.literal {
			continue
		}
		if p.several != nil && p.several(r) {
			return append(dst[:start], tagAmbiguous), false
		}
		if p.read == nil && repl == nil {
			repl = ReplacerOf(r)
		}
		value := p.value(r, vars, repl)
		if value != "" && p.tells {
			empty = false
		}
		dst = t.appendValue(dst, value)
	}
	return dst, empty
}

// AppendClientIP appends a key that stands in for an empty one: the client's address, marked so
// that it never meets an ordinary key. The key of requests without an address is the mark alone.
func (t *Template) AppendClientIP(dst []byte, r *http.Request, vars map[string]any) []byte {
	dst = append(dst, tagClientIP)
	if addr, ok := parseIP(clientOrRemote(r, toText(vars[caddyhttp.ClientIPVarKey]))); ok {
		dst = t.appendIP(dst, addr)
	}
	return dst
}
