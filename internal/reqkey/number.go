package reqkey

import (
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// A Number is a placeholder that a number of requests comes from.
type Number struct{ part part }

// NewNumber makes one of a placeholder in its braces. A number has one spelling.
func NewNumber(placeholder string) *Number {
	p := newPlaceholder(strings.Trim(placeholder, "{}"))
	p.form = nil
	return &Number{p}
}

// Name returns the placeholder without its braces.
func (p *Number) Name() string { return p.part.text }

// Unlimited is what Read returns for the word unlimited.
const Unlimited = -1

// maxNumber is the largest number of requests that comes with one: how far doubles, and so Redis'
// Lua and JSON, can count.
const maxNumber = 1 << 53

// Read returns the number that a request with these variables brings, or Unlimited. ok is false
// where it brings none, and text is then what it brings instead. It allocates nothing where the
// value is a text.
func (p *Number) Read(r *http.Request, vars map[string]any) (n int64, text string, ok bool) {
	if text = p.Text(r, vars); text == "unlimited" {
		return Unlimited, "", true
	}
	if n, ok = wholeNumber(text); !ok {
		return 0, text, false
	}
	return n, "", true
}

// Text returns what a request with these variables brings.
func (p *Number) Text(r *http.Request, vars map[string]any) string {
	var repl *caddy.Replacer
	if p.part.read == nil {
		repl = ReplacerOf(r)
	}
	return p.part.value(r, vars, repl)
}

// IsProven reports whether an address has no part in the number.
func (p *Number) IsProven() bool { return isProven(p.part.text) }

// wholeNumber reads digits and nothing else, up to maxNumber.
func wholeNumber(s string) (n int64, ok bool) {
	for i := range len(s) {
		digit := int64(s[i]) - '0'
		if digit < 0 || digit > 9 {
			return 0, false
		}
		if n = 10*n + digit; n > maxNumber {
			return 0, false
		}
	}
	return n, s != ""
}

// IsClients reports whether a client chooses the value: a header, a cookie, the address that it
// asks for or the body.
func (p *Number) IsClients() bool {
	name, ok := strings.CutPrefix(p.part.text, requestPrefix)
	return ok && slices.ContainsFunc([]string{"header.", "cookie.", "uri", "orig_uri", "body"}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

// IsOfAuthentication reports whether the value comes from authentication.
func (p *Number) IsOfAuthentication() bool { return isOfAuthentication(p.part.text) }

func isOfAuthentication(name string) bool { return strings.HasPrefix(name, "http.auth.") }

// AuthenticationIn returns a placeholder of the template that comes from authentication, "" for
// none.
func (t *Template) AuthenticationIn() string {
	for i := range t.parts {
		if p := &t.parts[i]; !p.literal && isOfAuthentication(p.text) {
			return p.text
		}
	}
	return ""
}
