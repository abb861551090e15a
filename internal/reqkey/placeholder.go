package reqkey

import (
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/hostport"
)

const (
	clientIPName = varsPrefix + caddyhttp.ClientIPVarKey
	peerName     = requestPrefix + "remote.host"

	varsPrefix    = "http.vars."
	requestPrefix = "http.request."
	headerPrefix  = requestPrefix + "header."
	queryPrefix   = requestPrefix + "uri.query."
	cookiePrefix  = requestPrefix + "cookie."
)

// ReplacerOf returns the replacer of a request, nil outside of Caddy.
func ReplacerOf(r *http.Request) *caddy.Replacer {
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	return repl
}

// A reader reads a placeholder's value from a request with these variables. It gives the same text
// as the replacer, and allocates nothing.
//
// The replacer keeps to the request as the server got it. Where a handler has passed on a copy and
// another one has rewritten the method or host of that, a reader sees what was rewritten.
type reader func(r *http.Request, vars map[string]any) string

// A known placeholder needs no replacer, or has values of several spellings, or doesn't tell
// clients apart.
type known struct {
	read reader
	form func(r *http.Request, value string) string
	// always is set where there is a value whoever asks.
	always  bool
	several ambiguity
}

// always is known of a placeholder that only has a value whoever asks.
var always = known{always: true}

var placeholders = map[string]known{
	clientIPName: {
		read: func(_ *http.Request, vars map[string]any) string { return toText(vars[caddyhttp.ClientIPVarKey]) },
		form: clientOrRemote,
	},
	peerName: {read: func(r *http.Request, _ map[string]any) string { return RemoteHost(r) }},
	"http.request.host": {
		always: true, form: spelled(canonicalHost),
		read: func(r *http.Request, _ map[string]any) string { return hostport.Host(r.Host) },
	},
	"http.request.hostport": {
		always: true, form: spelled(canonicalHostport),
		read: func(r *http.Request, _ map[string]any) string { return r.Host },
	},
	"http.request.method": {
		always: true, form: spelled(strings.ToUpper),
		read: func(r *http.Request, _ map[string]any) string { return r.Method },
	},
	"http.request.scheme": {always: true, read: func(r *http.Request, _ map[string]any) string {
		if r.TLS != nil {
			return "https"
		}
		return "http"
	}},
	"http.request.uri.path": {
		always: true, form: spelled(canonicalPath),
		read: func(r *http.Request, _ map[string]any) string { return r.URL.Path },
	},
	"http.request.uri.query": {
		always: true, read: func(r *http.Request, _ map[string]any) string { return r.URL.RawQuery },
	},

	"http.request.uri":               {always: true, form: spelled(canonicalURI)},
	"http.request.uri_escaped":       {always: true, form: spelled(canonicalEscapedURI)},
	"http.request.uri.path_escaped":  {always: true, form: spelled(canonicalEscapedPath)},
	"http.request.uri.path.dir":      {always: true, form: spelled(canonicalPath)},
	"http.request.orig_method":       {always: true, form: spelled(strings.ToUpper)},
	"http.request.orig_uri":          {always: true, form: spelled(canonicalURI)},
	"http.request.orig_uri.path":     {always: true, form: spelled(canonicalPath)},
	"http.request.orig_uri.path.dir": {always: true, form: spelled(canonicalPath)},

	"http.request.port":                    always,
	"http.request.uri.query_escaped":       always,
	"http.request.uri.prefixed_query":      always,
	"http.request.orig_uri.query":          always,
	"http.request.orig_uri.prefixed_query": always,
	"http.request.tls.version":             always,
	"http.request.tls.cipher_suite":        always,
	"http.request.tls.resumed":             always,
	"http.request.tls.proto":               always,
	"http.request.tls.proto_mutual":        always,
	"http.request.tls.server_name":         {always: true, form: spelled(canonicalHost)},
	"http.request.tls.ech":                 always,
}

// alwaysPrefixes begin the names of placeholders that have a value whoever asks.
var alwaysPrefixes = []string{
	"env.", "file.", "system.", "time.", "http.request.local", "http.request.host.labels.", "http.request.proto",
	"http.request.uri.path.file", "http.request.orig_uri.path.file",
}

// newPlaceholder makes the part of a placeholder.
func newPlaceholder(name string) part {
	if name == caddyhttp.ClientIPVarKey {
		name = clientIPName
	}
	of, listed := placeholders[name]
	field, ofHeader := strings.CutPrefix(name, headerPrefix)
	parameter, ofQuery := strings.CutPrefix(name, queryPrefix)
	cookie, ofCookie := strings.CutPrefix(name, cookiePrefix)
	variable, ofVars := strings.CutPrefix(name, varsPrefix)
	switch {
	case listed:
	case ofHeader:
		of = headerField(field)
	case ofQuery:
		of = queryParameter(parameter)
	case ofCookie:
		of = cookieOf(cookie)
	case strings.HasPrefix(name, requestPrefix+"uri.path."), strings.HasPrefix(name, requestPrefix+"orig_uri.path."):
		of = pathPart(name)
	case ofVars:
		of.read = func(_ *http.Request, vars map[string]any) string { return toText(vars[variable]) }
	case strings.HasPrefix(name, "http.request.tls.client."):
		of.form = onlyWithCertificate
	}
	for _, prefix := range alwaysPrefixes {
		of.always = of.always || strings.HasPrefix(name, prefix)
	}
	return part{
		text: name, read: of.read, form: of.form, several: of.several, tells: !of.always,
		address: name == clientIPName || name == "http.request.remote" || strings.HasPrefix(name, "http.request.remote."),
	}
}

// value reads a placeholder. What it returns is never searched for placeholders again.
func (p *part) value(r *http.Request, vars map[string]any, repl *caddy.Replacer) string {
	var value string
	switch {
	case p.read != nil:
		value = p.read(r, vars)
	case repl == nil:
		return ""
	default:
		v, _ := repl.Get(p.text)
		value = toText(v)
	}
	if p.form != nil {
		value = p.form(r, value)
	}
	return value
}

// toText is Caddy's own conversion, except that an error is no value: a body that could not be read
// is not an identity.
func toText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case error:
		return ""
	}
	return caddy.ToString(v)
}

// onlyWithCertificate leaves out what Caddy says of a certificate that is not there: its
// fingerprint is the hash of nothing, its serial number "<nil>", and both would be the same for all
// clients.
func onlyWithCertificate(r *http.Request, value string) string {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return ""
	}
	return value
}

// pathPart returns what is known of a placeholder for a numbered part of a path: the part of the
// path in its one spelling. Other names with its prefix have nothing of that.
func pathPart(name string) (of known) {
	dot := strings.LastIndexByte(name, '.')
	n, err := strconv.Atoi(name[dot+1:])
	if err != nil || n < 0 {
		return of
	}
	of.always = true
	switch name[:dot] {
	case requestPrefix + "uri.path":
		of.read = func(r *http.Request, _ map[string]any) string { return partOf(r.URL.Path, n) }
	case requestPrefix + "orig_uri.path":
		of.read = func(r *http.Request, _ map[string]any) string {
			if came, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
				return partOf(came.URL.Path, n)
			}
			return ""
		}
	}
	return of
}

// partOf returns the n-th part of a path, the first one for 0, "" where it has fewer.
func partOf(p string, n int) (part string) {
	p = strings.TrimPrefix(canonicalPath(p), "/")
	for more := true; n >= 0; n-- {
		if !more {
			return ""
		}
		part, p, more = strings.Cut(p, "/")
	}
	return part
}

// spelled makes a form of a function that needs no request.
func spelled(canonical func(string) string) func(*http.Request, string) string {
	return func(_ *http.Request, value string) string { return canonical(value) }
}

func canonicalHost(host string) string {
	if len(host) > 2 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	return strings.ToLower(strings.TrimRight(host, "."))
}

func canonicalHostport(hostport string) string {
	if strings.IndexByte(hostport, ':') < 0 {
		return canonicalHost(hostport)
	}
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return canonicalHost(hostport)
	}
	if canonical := canonicalHost(host); canonical != host {
		return net.JoinHostPort(canonical, port)
	}
	return hostport
}

// canonicalPath resolves dots and doubled slashes, and drops a trailing one. The path is unescaped
// already.
func canonicalPath(p string) string {
	if p == "" || p[0] != '/' {
		return p
	}
	return path.Clean(p)
}

func canonicalURI(uri string) string {
	escaped, query, hasQuery := strings.Cut(uri, "?")
	plain, err := url.PathUnescape(escaped)
	if err != nil {
		plain = escaped
	}
	canonical := (&url.URL{Path: canonicalPath(plain)}).EscapedPath()
	if canonical == escaped {
		return uri
	}
	if hasQuery {
		canonical += "?" + query
	}
	return canonical
}

func canonicalEscapedPath(escaped string) string { return canonicalPath(unescapeQuery(escaped)) }

func canonicalEscapedURI(escaped string) string { return canonicalURI(unescapeQuery(escaped)) }

func unescapeQuery(escaped string) string {
	plain, err := url.QueryUnescape(escaped)
	if err != nil {
		return escaped
	}
	return plain
}
