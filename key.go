package ratelimit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// The values of a key are tagged, so that no two lists of values give the same bytes. Literal text of the template is the
// same in every key and is left out.
const (
	tagShared   = 0x00 // alone: the key of a template without placeholders
	tagText     = 0x01 // a length (uvarint) and that many bytes
	tagIPv4     = 0x04 // the bytes of the network
	tagIPv6     = 0x06 // the bytes of the network
	tagEarly    = 0xfe // first: an address in this key came in early data, so the key never meets one of a proven address
	tagClientIP = 0xff // first: a client IP that stands in for an empty key, and so never meets an ordinary key
)

const clientIPName = "http.vars." + caddyhttp.ClientIPVarKey

// A keyTemplate turns requests into keys. It is not changed after compileKey and is safe for concurrent use.
//
// A value that is an IP address, wherever it comes from, is unmapped, stripped of its zone and cut to its network. Host
// and path are brought to one spelling, so a client can't have several keys by writing them differently.
//
// A key is empty when all values that tell clients apart are. Those that come with every request (its host, method, path,
// the environment) don't tell: {host}:{http.request.header.X-Api-Key} without that header must not be one bucket for all
// who leave it out. A template of only such placeholders is empty when all of them are, one without placeholders never.
type keyTemplate struct {
	parts  []keyPart
	v4bits int
	v6bits int
	// telling is how many parts tell clients apart, or all placeholders where none does.
	telling int
}

// keyPart is literal text or a placeholder.
type keyPart struct {
	source keySource
	// text is the literal, or the name of the placeholder.
	text string
	// header is the canonical name of a request header.
	header string
	// read is what reads it from the request, where that needs no replacer.
	read  func(r *http.Request) string
	form  func(r *http.Request, value string) string
	tells bool
	// address is set for placeholders made of the client's or the peer's address.
	address bool
}

// keySource is where a part's value is read from. What most keys are made of has a way past the replacer that gives the same bytes and
// allocates nothing. The replacer keeps to the request as the server got it: should a handler have passed on a copy and another one
// rewritten the method or host of that, the short way sees what was rewritten.
type keySource uint8

const (
	fromTemplate keySource = iota
	fromClientIP
	fromHeader
	fromVar
	fromRequest
	fromReplacer
)

// compileKey compiles a key template that groups IPv4 addresses by v4bits (1 to 32) and IPv6 addresses by v6bits (1 to 128).
// Braces are escaped by a backslash, as everywhere in Caddy.
func compileKey(template string, v4bits, v6bits int) (*keyTemplate, error) {
	if v4bits < 1 || v4bits > 32 {
		return nil, fmt.Errorf("an IPv4 prefix has 1 to 32 bits, not %d", v4bits)
	}
	if v6bits < 1 || v6bits > 128 {
		return nil, fmt.Errorf("an IPv6 prefix has 1 to 128 bits, not %d", v6bits)
	}
	parts, err := parseKey(template)
	if err != nil {
		return nil, err
	}
	k := &keyTemplate{parts: parts, v4bits: v4bits, v6bits: v6bits}
	for i := range k.parts {
		if k.parts[i].tells {
			k.telling++
		}
	}
	if k.telling > 0 {
		return k, nil
	}
	for i := range k.parts {
		if k.parts[i].source != fromTemplate {
			k.parts[i].tells = true
			k.telling++
		}
	}
	return k, nil
}

// parseKey splits a template by the rules of Caddy's replacer, except that a brace that is never closed is an error.
func parseKey(template string) ([]keyPart, error) {
	var parts []keyPart
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			parts = append(parts, keyPart{source: fromTemplate, text: literal.String()})
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

func newPlaceholder(name string) keyPart {
	if name == caddyhttp.ClientIPVarKey {
		name = clientIPName
	}
	p := keyPart{source: fromReplacer, text: name, form: canonicalForm(name), tells: !comesWithEveryRequest(name), address: isAddress(name)}
	if name == clientIPName {
		p.source = fromClientIP
	}
	if field, ok := strings.CutPrefix(name, "http.request.header."); ok {
		p.source, p.header = fromHeader, textproto.CanonicalMIMEHeaderKey(field)
	}
	if p.source == fromReplacer && strings.HasPrefix(name, varsPrefix) {
		p.source = fromVar
	}
	if p.read = requestReader(name); p.read != nil {
		p.source = fromRequest
	}
	return p
}

const (
	varsPrefix = "http.vars."
	peerName   = "http.request.remote.host"
)

// isAddress reports whether a placeholder is made of the client's or the peer's address.
func isAddress(name string) bool {
	return name == clientIPName || name == "http.request.remote" || strings.HasPrefix(name, "http.request.remote.")
}

// isEarly reports whether a request came in early data (0-RTT), whose sender can be forged: QUIC proves an address by the handshake.
func isEarly(r *http.Request) bool { return r.TLS != nil && !r.TLS.HandshakeComplete }

// requestReader is what the replacer does for a placeholder, without the replacer; nil where that would save nothing.
func requestReader(name string) func(*http.Request) string {
	switch name {
	case "http.request.host":
		return func(r *http.Request) string { return withoutPort(r.Host) }
	case "http.request.hostport":
		return func(r *http.Request) string { return r.Host }
	case "http.request.method":
		return func(r *http.Request) string { return r.Method }
	case "http.request.scheme":
		return func(r *http.Request) string {
			if r.TLS != nil {
				return "https"
			}
			return "http"
		}
	case "http.request.uri.path":
		return func(r *http.Request) string { return r.URL.Path }
	case "http.request.uri.query":
		return func(r *http.Request) string { return r.URL.RawQuery }
	case peerName:
		return func(r *http.Request) string {
			if isEarly(r) {
				return "" // as Caddy's own
			}
			return remoteHost(r)
		}
	}
	return nil
}

// varsOf are the variables of a request, nil outside of Caddy. A value of a context is looked for in one context after the other, so it is done once.
func varsOf(r *http.Request) map[string]any {
	vars, _ := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	return vars
}

// appendKey appends the key of a request, which has these variables. Every key begins with a tag, also an empty one, which so can serve as one
// bucket for all who have none.
func (k *keyTemplate) appendKey(dst []byte, r *http.Request, vars map[string]any) (key []byte, empty bool) {
	if k.telling == 0 {
		return append(dst, tagShared), false
	}
	if isEarly(r) {
		return k.appendEarlyKey(dst, r, vars)
	}
	empty = true
	var repl *caddy.Replacer
	for i := range k.parts {
		p := &k.parts[i]
		if p.source == fromTemplate {
			continue
		}
		if p.source == fromReplacer && repl == nil {
			repl, _ = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
		}
		value := p.value(r, vars, repl)
		if value != "" && p.tells {
			empty = false
		}
		dst = k.appendValue(dst, value)
	}
	return dst, empty
}

// appendEarlyKey is appendKey for early data. A key with an address in it, wherever that comes from (a proxy's header is as good as the proxy's
// address), is one of its own: who forges his address must not spend what belongs to its owner. Caddy has no peer's address in early data;
// here it is there, as a key without it would be empty, and empty_key could let the request pass uncounted.
func (k *keyTemplate) appendEarlyKey(dst []byte, r *http.Request, vars map[string]any) (key []byte, empty bool) {
	empty = true
	start, unproven := len(dst), false
	dst = append(dst, tagEarly)
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	for i := range k.parts {
		p := &k.parts[i]
		if p.source == fromTemplate {
			continue
		}
		value := p.value(r, vars, repl)
		if value == "" && p.address {
			value = remoteHost(r)
		}
		if value != "" && p.tells {
			empty = false
		}
		at := len(dst)
		dst = k.appendValue(dst, value)
		unproven = unproven || value != "" && p.address || dst[at] != tagText
	}
	if !unproven {
		dst = append(dst[:start], dst[start+1:]...)
	}
	return dst, empty
}

// value reads a placeholder. What it returns is never searched for placeholders again.
func (p *keyPart) value(r *http.Request, vars map[string]any, repl *caddy.Replacer) string {
	var value string
	switch p.source {
	case fromClientIP:
		value = toText(vars[caddyhttp.ClientIPVarKey])
	case fromHeader:
		value = strings.Join(r.Header[p.header], ",")
	case fromVar:
		value = toText(vars[p.text[len(varsPrefix):]])
	case fromRequest:
		value = p.read(r)
	default:
		if repl == nil {
			return ""
		}
		v, _ := repl.Get(p.text)
		value = toText(v)
	}
	if p.form != nil {
		value = p.form(r, value)
	}
	return value
}

// toText is Caddy's own conversion, except that an error is no value: a body that could not be read is not an identity.
func toText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case error:
		return ""
	}
	return caddy.ToString(v)
}

func (k *keyTemplate) appendValue(dst []byte, value string) []byte {
	if addr, ok := parseIP(value); ok {
		return appendIP(dst, addr, k.v4bits, k.v6bits)
	}
	dst = append(dst, tagText)
	dst = binary.AppendUvarint(dst, uint64(len(value)))
	return append(dst, value...)
}

// appendClientIP appends a key that stands in for an empty one: the client's address, marked so that it never meets an
// ordinary key, and in early data as one that is not proven. Without an address it reports false, and the key is one bucket for all such requests.
func appendClientIP(dst []byte, r *http.Request, vars map[string]any, v4bits, v6bits int) ([]byte, bool) {
	if isEarly(r) {
		dst = append(dst, tagEarly)
	}
	dst = append(dst, tagClientIP)
	value := toText(vars[caddyhttp.ClientIPVarKey])
	addr, ok := parseIP(clientOrRemote(r, value))
	if !ok {
		return dst, false
	}
	return appendIP(dst, addr, v4bits, v6bits), true
}

// appendIP appends the network of an address that parseIP returned.
func appendIP(dst []byte, addr netip.Addr, v4bits, v6bits int) []byte {
	if addr.Is4() {
		raw := addr.As4()
		return appendNetwork(append(dst, tagIPv4), raw[:], v4bits)
	}
	raw := addr.As16()
	return appendNetwork(append(dst, tagIPv6), raw[:], v6bits)
}

// appendNetwork appends the first bits of raw, in as few bytes as hold them.
func appendNetwork(dst, raw []byte, bits int) []byte {
	full, part := bits/8, bits%8
	dst = append(dst, raw[:full]...)
	if part > 0 {
		dst = append(dst, raw[full]&^(0xff>>part))
	}
	return dst
}

// parseIP returns the address that s is, with its zone stripped and out of an IPv4-mapped form: ::ffff:192.0.2.1 is 192.0.2.1, or
// else all IPv4 clients are one IPv6 network (CVE-2026-30827). So they are in 64:ff9b::/96, which NAT64 puts before them (RFC 6052).
func parseIP(s string) (netip.Addr, bool) {
	if v4, ok := parseIPv4(s); ok {
		return netip.AddrFrom4(v4), true
	}
	if i := strings.IndexByte(s, '%'); i >= 0 {
		s = s[:i]
	}
	if !looksLikeIP(s) {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, false
	}
	if nat64.Contains(addr) {
		raw := addr.As16()
		return netip.AddrFrom4([4]byte(raw[12:])), true
	}
	return addr.Unmap(), true
}

var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// parseIPv4 reads four numbers with dots between them as netip.ParseAddr does, in one go: most client IPs are written so.
func parseIPv4(s string) (addr [4]byte, ok bool) {
	if len(s) < len("0.0.0.0") || len(s) > len("255.255.255.255") {
		return addr, false
	}
	octet, value, digits := 0, 0, 0
	for i := range len(s) {
		switch c := s[i]; {
		case c >= '0' && c <= '9':
			if value = value*10 + int(c-'0'); value > 255 || digits > 0 && value < 10 { // a leading zero
				return addr, false
			}
			digits++
		case c == '.' && digits > 0 && octet < 3:
			addr[octet] = byte(value)
			octet, value, digits = octet+1, 0, 0
		default:
			return addr, false
		}
	}
	addr[octet] = byte(value)
	return addr, octet == 3 && digits > 0
}

// looksLikeIP spares most other text the error that netip.ParseAddr allocates.
func looksLikeIP(s string) bool {
	const longest = len("0000:0000:0000:0000:0000:ffff:255.255.255.255")
	if len(s) < len("::") || len(s) > longest {
		return false
	}
	dots, colons := 0, 0
	for i := range len(s) {
		switch c := s[i]; {
		case c == '.':
			dots++
		case c == ':':
			colons++
		case c >= '0' && c <= '9', c >= 'a' && c <= 'f', c >= 'A' && c <= 'F':
		default:
			return false
		}
	}
	return dots == 3 || colons >= 2
}

// canonicalForm returns what brings the values of a placeholder to one spelling, nil where there is nothing to do.
func canonicalForm(name string) func(*http.Request, string) string {
	switch name {
	case clientIPName:
		return clientOrRemote
	case "http.request.host":
		return func(_ *http.Request, host string) string { return canonicalHost(host) }
	case "http.request.hostport":
		return func(_ *http.Request, hostport string) string { return canonicalHostport(hostport) }
	case "http.request.uri.path", "http.request.uri.path.dir", "http.request.orig_uri.path", "http.request.orig_uri.path.dir":
		return func(_ *http.Request, path string) string { return canonicalPath(path) }
	case "http.request.uri.path_escaped":
		return func(_ *http.Request, escaped string) string { return canonicalPath(unescapeQuery(escaped)) }
	case "http.request.uri", "http.request.orig_uri":
		return func(_ *http.Request, uri string) string { return canonicalURI(uri) }
	case "http.request.uri_escaped":
		return func(_ *http.Request, escaped string) string { return canonicalURI(unescapeQuery(escaped)) }
	}
	if strings.HasPrefix(name, "http.request.tls.client.") {
		return onlyWithCertificate
	}
	return nil
}

// clientOrRemote is the client IP that the server found, or the peer's address where there was no server to ask. A peer without an
// address (a Unix socket) has none.
func clientOrRemote(r *http.Request, client string) string {
	if client != "" {
		return client
	}
	if host := remoteHost(r); host != "" {
		if _, ok := parseIP(host); ok {
			return host
		}
	}
	return ""
}

// remoteHost is the address of the peer without its port.
func remoteHost(r *http.Request) string {
	return withoutPort(r.RemoteAddr)
}

// withoutPort is the host of host:port, and all of what is something else. net.SplitHostPort would allocate an error for most Host headers.
func withoutPort(s string) string {
	colon := strings.IndexByte(s, ':')
	if colon < 0 {
		return s
	}
	if colon == strings.LastIndexByte(s, ':') && !strings.ContainsAny(s, "[]") {
		return s[:colon]
	}
	host, _, err := net.SplitHostPort(s)
	if err != nil {
		return s
	}
	return host
}

// onlyWithCertificate leaves out what Caddy says of a certificate that is not there: its fingerprint is the hash of
// nothing, its serial number "<nil>", and both would be the same for all clients.
func onlyWithCertificate(r *http.Request, value string) string {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return ""
	}
	return value
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

// canonicalPath resolves dots and doubled slashes, and drops a trailing one. The path is unescaped already.
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

func unescapeQuery(escaped string) string {
	plain, err := url.QueryUnescape(escaped)
	if err != nil {
		return escaped
	}
	return plain
}

// comesWithEveryRequest reports that a placeholder has a value whoever asks, so that it can't tell a client.
func comesWithEveryRequest(name string) bool {
	for _, prefix := range []string{
		"env.", "file.", "system.", "time.", "http.request.local", "http.request.host.labels.", "http.request.proto",
		"http.request.uri.path.file", "http.request.orig_uri.path.file",
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	switch name {
	case "http.request.method", "http.request.scheme", "http.request.host", "http.request.port", "http.request.hostport",
		"http.request.uri", "http.request.uri_escaped", "http.request.uri.path", "http.request.uri.path_escaped",
		"http.request.uri.path.dir", "http.request.uri.query", "http.request.uri.query_escaped", "http.request.uri.prefixed_query",
		"http.request.orig_method", "http.request.orig_uri", "http.request.orig_uri.path", "http.request.orig_uri.path.dir",
		"http.request.orig_uri.query", "http.request.orig_uri.prefixed_query",
		"http.request.tls.version", "http.request.tls.cipher_suite", "http.request.tls.resumed", "http.request.tls.proto",
		"http.request.tls.proto_mutual", "http.request.tls.server_name", "http.request.tls.ech":
		return true
	}
	return false
}

// longestKeyText is how many bytes of a key a log line shows.
const longestKeyText = 128

// text shows a key that this template made, for a log: as the template reads with its values filled in, in printable ASCII, at
// most 128 bytes and an ellipsis.
func (k *keyTemplate) text(key []byte) string {
	if len(key) > 0 && key[0] == tagEarly {
		key = key[1:]
	}
	if len(key) > 0 && key[0] == tagClientIP {
		return "client_ip:" + bounded(k.appendValueText(nil, &key, 1))
	}
	var raw []byte
	for i := range k.parts {
		if len(raw) > longestKeyText {
			break
		}
		if k.parts[i].source == fromTemplate {
			raw = append(raw, k.parts[i].text...)
			continue
		}
		raw = k.appendValueText(raw, &key, 0)
	}
	return bounded(raw)
}

// appendValueText takes one value off the key, after skip bytes, and appends it as text.
func (k *keyTemplate) appendValueText(dst []byte, key *[]byte, skip int) []byte {
	rest := *key
	if len(rest) <= skip {
		return dst
	}
	tag := rest[skip]
	rest = rest[skip+1:]
	size, bits := 0, 0
	var raw []byte
	switch tag {
	case tagText:
		n, width := binary.Uvarint(rest)
		if width <= 0 || n > uint64(len(rest)-width) {
			*key = nil
			return dst
		}
		*key = rest[width+int(n):]
		return append(dst, rest[width : width+int(n)][:min(int(n), longestKeyText+1)]...)
	case tagIPv4:
		bits, raw = k.v4bits, make([]byte, 4)
	case tagIPv6:
		bits, raw = k.v6bits, make([]byte, 16)
	}
	size = (bits + 7) / 8
	if raw == nil || len(rest) < size {
		*key = nil
		return dst
	}
	copy(raw, rest[:size])
	*key = rest[size:]
	addr, _ := netip.AddrFromSlice(raw)
	dst = addr.AppendTo(dst)
	if bits < addr.BitLen() {
		dst = append(append(dst, '/'), strconv.Itoa(bits)...)
	}
	return dst
}

// bounded makes printable ASCII of what a client sent: controls could drive a terminal, other scripts could pass for something else.
func bounded(raw []byte) string {
	quoted := strconv.QuoteToASCII(string(raw[:min(len(raw), longestKeyText)]))
	quoted = quoted[1 : len(quoted)-1]
	if len(raw) > longestKeyText || len(quoted) > longestKeyText {
		quoted = quoted[:min(len(quoted), longestKeyText)] + "..."
	}
	return quoted
}
