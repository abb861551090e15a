package reqkey

import (
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
)

// A header or query parameter that comes several times is ambiguous: one program takes the first
// value, another one the last, and a third joins them. A key of any of these would let a client
// have a new count with each request by a value that its backend does not look at. So all requests
// of a zone with several values in their keys share one count, whatever the values are.

// ambiguousText is what Text makes of that key.
const ambiguousText = "ambiguous:"

// IsAmbiguous reports whether a key, which may be empty, is that of requests with several values.
func IsAmbiguous(key []byte) bool {
	return len(key) == 1 && key[0] == tagAmbiguous
}

// canBeAmbiguous reports whether one of the placeholders can have several values.
func (t *Template) canBeAmbiguous() bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.several != nil })
}

// An ambiguity reports whether a request has several values for a placeholder.
type ambiguity func(r *http.Request) bool

// headerField returns what is known of a placeholder for a header. The cookies of one request may
// be in several lines (RFC 9113, 8.2.3).
func headerField(name string) known {
	name = textproto.CanonicalMIMEHeaderKey(name)
	of := known{
		form: spelled(trimmed), // which a server of HTTP/2 leaves to others
		read: func(r *http.Request, _ map[string]any) string {
			if lines := r.Header[name]; len(lines) == 1 || len(lines) > 1 && name != "Cookie" && !differ(lines) {
				return lines[0]
			}
			return strings.Join(r.Header[name], ",") // as the replacer
		},
		several: func(r *http.Request) bool { return differ(r.Header[name]) },
	}
	switch name {
	case "Cookie":
		of.several = nil
	case "Authorization", "Proxy-Authorization":
		of.form = spelled(canonicalCredentials)
	}
	return of
}

// trimmed leaves out the space around a value, which is no part of it (RFC 9110, 5.5).
func trimmed(value string) string { return strings.Trim(value, " \t") }

// differ reports whether lines of a header have several values.
func differ(lines []string) bool {
	for i := 1; i < len(lines); i++ {
		if trimmed(lines[i]) != trimmed(lines[0]) {
			return true
		}
	}
	return false
}

// schemes are those of Authorization that are not written with a capital first letter alone.
var schemes = map[string]string{
	"apikey": "ApiKey", "aws4-hmac-sha256": "AWS4-HMAC-SHA256", "dpop": "DPoP", "gnap": "GNAP", "hoba": "HOBA", "ntlm": "NTLM", "oauth": "OAuth",
	"privatetoken": "PrivateToken", "scram-sha-1": "SCRAM-SHA-1", "scram-sha-256": "SCRAM-SHA-256", "vapid": "vapid",
}

// canonicalCredentials brings the scheme before credentials to one spelling, as its case does not
// matter (RFC 9110, 11.1), and leaves one space behind it.
func canonicalCredentials(value string) string {
	value = trimmed(value)
	end := strings.IndexAny(value, " \t")
	if end < 0 {
		return value // a token without a scheme
	}
	credentials := trimmed(value[end:])
	switch value[:end] {
	case "Basic", "Bearer", "Digest": // nearly all are written so
		if value[end] == ' ' && len(credentials) == len(value)-end-1 {
			return value
		}
	}
	scheme := strings.ToLower(value[:end])
	if known, ok := schemes[scheme]; ok {
		return known + " " + credentials
	}
	return strings.ToUpper(scheme[:1]) + scheme[1:] + " " + credentials
}

// queryParameter returns what is known of a placeholder for a parameter of the query.
func queryParameter(name string) known {
	return known{
		read: func(r *http.Request, _ map[string]any) string {
			if value, several := inQuery(r.URL.RawQuery, name); !several {
				return value
			}
			return strings.Join(r.URL.Query()[name], ",") // as the replacer
		},
		several: func(r *http.Request) bool {
			_, several := inQuery(r.URL.RawQuery, name)
			return several
		},
	}
}

// inQuery returns the first value of a parameter, and whether there is another one. It reads a
// query as url.ParseQuery does, which leaves out pairs with a semicolon. Where a backend takes that
// for the end of a pair, it has a value that is not seen here.
func inQuery(query, name string) (value string, several bool) {
	found := false
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		if strings.Contains(pair, ";") {
			for piece := range strings.SplitSeq(pair, ";") {
				if key, _, _ := strings.Cut(piece, "="); isParameter(key, name) {
					return value, true
				}
			}
			continue
		}
		key, text, _ := strings.Cut(pair, "=")
		if !isParameter(key, name) {
			continue
		}
		text, err := url.QueryUnescape(text)
		switch {
		case err != nil:
		case found && text != value:
			return value, true
		default:
			value, found = text, true
		}
	}
	return value, false
}

// isParameter reports whether a key of a query is the name of a parameter.
func isParameter(key, name string) bool {
	if len(key) < len(name) {
		return false
	}
	key, err := url.QueryUnescape(key)
	return err == nil && key == name
}

// cookieOf returns what is known of a placeholder for a cookie. Its name has no case for Caddy and
// has one for backends, so a second spelling of it is ambiguous. Of several cookies with one
// spelling, which a browser sends where two paths have one, the first counts.
func cookieOf(name string) known {
	return known{several: func(r *http.Request) bool {
		spelling, value := "", ""
		for _, line := range r.Header["Cookie"] {
			for line != "" {
				var pair string
				pair, line, _ = strings.Cut(line, ";")
				key, text, ok := strings.Cut(trimmed(pair), "=")
				switch key = trimmed(key); {
				case !ok || !strings.EqualFold(key, name):
				case spelling == "":
					spelling, value = key, text
				case key != spelling && text != value:
					return true
				}
			}
		}
		return false
	}}
}
