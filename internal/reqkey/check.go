package reqkey

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

// Check looks for slips in a template when it is loaded. A name in Caddy's own http.request. that
// does not exist is an error: it would come out empty for everyone. Other names may come from map
// or another module, so there a slip is a warning.
func Check(template string) (found []warning.Warning, err error) {
	parts, err := parse(template)
	if err != nil {
		return nil, err
	}
	if meant := bracesForgotten(parts); meant != "" {
		return []warning.Warning{{Code: warning.NoBraces, Text: fmt.Sprintf("the key %q is the same text for every request, so all share one count; write {%s} in braces, or another word, like all, if one count is meant", template, meant)}}, nil
	}
	for i := range parts {
		if parts[i].literal {
			continue
		}
		w, err := checkPlaceholder(parts[i].text)
		if err != nil {
			return nil, err
		}
		if w.Text != "" {
			found = append(found, w)
		}
	}
	return found, nil
}

// CheckNumber is Check of a placeholder that requests bring a number by. Of its warnings one holds:
// that it has no value.
func CheckNumber(placeholder string) (found []warning.Warning, err error) {
	all, err := Check(placeholder)
	for _, w := range all {
		if what, use, _ := strings.Cut(w.Text, "; "); w.Code == warning.UnknownKey {
			if !strings.HasPrefix(use, "did you mean") {
				w.Text = what + "; write what brings a number, like a variable that map sets"
			}
			found = append(found, w)
		}
	}
	return found, err
}

// CheckText reports a placeholder in Caddy's own http.request. in a text for clients that does not
// exist. Text may well have braces in it, so of all other names nothing is said.
func CheckText(name string) error {
	if !strings.HasPrefix(name, requestPrefix) || knownToCaddy(name) {
		return nil
	}
	return errUnknown(name)
}

// errUnknown is the error of a name in http.request. that does not exist.
func errUnknown(name string) error {
	if meant := suggestion(name); meant != "" {
		return fmt.Errorf("there is no placeholder {%s}; did you mean {%s}?", name, meant)
	}
	return fmt.Errorf("there is no placeholder {%s}; write what a request has, like {http.request.header.X-Api-Key}", name)
}

// IsConstant reports whether a template has no placeholder, so that all requests have one key.
func IsConstant(template string) bool {
	parts, err := parse(template)
	return err == nil && !slices.ContainsFunc(parts, func(p part) bool { return !p.literal })
}

// isSecret reports whether a value is known to its owner alone, by the name of its placeholder.
func isSecret(name string) bool {
	name = strings.ToLower(name)
	return strings.HasPrefix(name, requestPrefix+"cookie.") || strings.HasPrefix(name, headerPrefix) &&
		slices.ContainsFunc([]string{"authorization", "cookie", "key", "token", "secret", "session"}, func(word string) bool {
			return strings.Contains(name[len(headerPrefix):], word)
		})
}

// HasAddress reports whether the keys of a template hold the client's address or the peer's.
func HasAddress(template string) bool {
	parts, _ := parse(template)
	return slices.ContainsFunc(parts, func(p part) bool { return p.address })
}

// IsAddress reports whether an address is all that tells clients apart in a template.
func IsAddress(template string) bool {
	parts, _ := parse(template)
	return HasAddress(template) && !slices.ContainsFunc(parts, func(p part) bool { return p.tells && !p.address && !p.literal })
}

// ForAddress mends a template of the older plugin, where a placeholder that doesn't exist gave the
// empty text: where it was meant for the client's address, the limit held for all clients together.
// A name in Caddy's own http.request. becomes the client's address. mayBeAnother is set where there
// are others that may be meant for it, which map or another module can set.
func ForAddress(template string) (mended string, mayBeAnother bool) {
	parts, _ := parse(template) // Check reports the error
	for i := range parts {
		name := parts[i].text
		switch {
		case parts[i].literal || !MeansClientIP(name):
		case strings.HasPrefix(name, requestPrefix):
			template = strings.Replace(template, "{"+name+"}", Default, 1)
		default:
			mayBeAnother = true
		}
	}
	return template, mayBeAnother
}

// bracesForgotten returns the placeholder that a template without any is a name of, "" if there is
// none.
func bracesForgotten(parts []part) string {
	if len(parts) != 1 || !parts[0].literal {
		return ""
	}
	name := strings.Trim(parts[0].text, "$%()[]<> ")
	if meant, ok := slips[strings.ToLower(name)]; ok {
		return meant
	}
	for _, p := range slippedPrefixes {
		if field, ok := cutPrefixFold(name, p[0]); ok && field != "" && plausible(p[1]+field) {
			return p[1] + field
		}
	}
	for _, prefix := range []string{"http.request.", "http.vars.", "http.auth."} {
		if strings.HasPrefix(name, prefix) {
			return name
		}
	}
	return ""
}

// checkPlaceholder is Check of one placeholder. A warning without text is none.
func checkPlaceholder(name string) (w warning.Warning, err error) {
	if reason, ok := poorKeys[name]; ok {
		return warning.New(warning.PoorKey, "{%s} %s", name, reason), nil
	}
	if strings.EqualFold(name, headerPrefix+"Host") {
		return warning.Warning{Code: warning.UnknownKey, Unset: name, Text: fmt.Sprintf("{%s} is always empty; did you mean {http.request.host}?", name)}, nil
	}
	if claimsAddress(name) {
		return warning.New(warning.ForgeableKey, "a client can send any {%s} unless a proxy replaces it; {client_ip} with trusted_proxies can't be forged", name), nil
	}
	switch {
	case strings.HasPrefix(name, requestPrefix):
		if knownToCaddy(name) {
			return w, nil
		}
		return w, errUnknown(name)
	case IsOfResponse(name):
		return warning.Warning{Code: warning.UnknownKey, Unset: name,
			Text: fmt.Sprintf("{%s} has no value yet when requests are limited; use something of the request, like {client_ip}", name)}, nil
	case strings.HasPrefix(name, "time.now"):
		return warning.New(warning.PoorKey, "{%s} changes all the time, so every request would have its own count; did you mean {client_ip}?", name), nil
	case strings.HasPrefix(name, "env."), strings.HasPrefix(name, "file."), strings.HasPrefix(name, "system."), name == clientIPName:
		return w, nil
	}
	if s := suggestion(name); s != "" {
		return warning.Warning{Code: warning.UnknownKey, Unset: name,
			Text: fmt.Sprintf("{%s} is not a placeholder of Caddy's own, and empty unless map or another module sets it; did you mean {%s}?", name, s)}, nil
	}
	if strings.Count(name, ".") > 1 && !isOfModule(name) {
		return warning.Warning{Code: warning.UnknownKey, Unset: name,
			Text: fmt.Sprintf("{%s} is not a placeholder of Caddy's own, nor of a module that is there, and empty unless map sets it; write something of the request, like {client_ip} or {http.request.header.X-Api-Key}", name)}, nil
	}
	return w, nil
}

// IsOfResponse reports whether a name has a value only after a response, like that of forward_auth.
func IsOfResponse(name string) bool {
	return slices.ContainsFunc([]string{"http.reverse_proxy.", "http.response.", "http.intercept."}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

// isOfModule reports whether a name is of a family that Caddy or one of its modules sets, as far as
// its beginning tells.
func isOfModule(name string) bool {
	family, rest, _ := strings.Cut(name, ".")
	if family == "http" {
		if family, _, _ = strings.Cut(rest, "."); slices.Contains([]string{"auth", "vars", "regexp", "error"}, family) {
			return true
		}
	}
	return slices.ContainsFunc(caddy.Modules(), func(id string) bool { return slices.Contains(strings.Split(id, "."), family) })
}

// poorKeys exist, but don't group requests by who sends them.
var poorKeys = map[string]string{
	"http.request.uuid":        "differs for every request, so nothing would ever be limited; did you mean {client_ip}?",
	"http.request.duration":    "differs for every request, so nothing would ever be limited; did you mean {client_ip}?",
	"http.request.duration_ms": "differs for every request, so nothing would ever be limited; did you mean {client_ip}?",
	"http.request.remote":      "has the port in it, so every connection would have its own count; did you mean {client_ip}?",
	"http.request.remote.port": "differs for every connection; did you mean {client_ip}?",
	"http.request.port":        "is what the client writes behind the host; did you mean {http.request.local.port}?",
	"http.request.hostport":    "has a port in it that the client can choose; did you mean {http.request.host}?",
}

// forgeable headers claim an address.
var forgeable = map[string]bool{
	"x-forwarded-for": true, "x-real-ip": true, "forwarded": true, "x-client-ip": true, "true-client-ip": true, "client-ip": true, "x-forwarded": true,
	"forwarded-for": true, "x-original-forwarded-for": true, "x-cluster-client-ip": true, "x-remote-ip": true, "x-remote-addr": true,
	"x-originating-ip": true, "cf-connecting-ip": true, "cf-connecting-ipv6": true, "cf-pseudo-ipv4": true, "fastly-client-ip": true, "fly-client-ip": true,
	"x-azure-clientip": true, "x-azure-socketip": true, "x-appengine-user-ip": true, "x-envoy-external-address": true, "do-connecting-ip": true,
	"x-nf-client-connection-ip": true, "x-vercel-forwarded-for": true, "ali-cdn-real-ip": true, "cdn-src-ip": true, "x-sucuri-clientip": true,
	"incap-client-ip": true, "cloudfront-viewer-address": true,
}

// claimsAddress reports whether a placeholder is a header that claims an address.
func claimsAddress(name string) bool {
	field, ok := strings.CutPrefix(name, headerPrefix)
	return ok && forgeable[strings.ToLower(field)]
}

// slips are names that people write, and what they mean.
var slips = map[string]string{
	"client_ip": "client_ip", "ip": "client_ip", "remote_ip": "client_ip", "remoteip": "client_ip", "remote_addr": "client_ip", "client_addr": "client_ip", "clientip": "client_ip",
	"client-ip": "client_ip", "client.ip": "client_ip", "real_ip": "client_ip", "remote.ip": "client_ip", "remote.addr": "client_ip", "source_ip": "client_ip",
	"addr": "client_ip", "address": "client_ip", "peer": "client_ip", "client": "client_ip", "forwarded_for": "client_ip", "binary_remote_addr": "client_ip",
	"http.client_ip": "client_ip", "http.remote_ip": "client_ip", "http.vars.remote_ip": "client_ip", "http.vars.ip": "client_ip",
	"remote_host": "http.request.remote.host", "remotehost": "http.request.remote.host",
	"host": "http.request.host", "hostname": "http.request.host", "domain": "http.request.host", "server_name": "http.request.host",
	"hostport": "http.request.hostport", "port": "http.request.port", "method": "http.request.method", "scheme": "http.request.scheme",
	"path": "http.request.uri.path", "uri": "http.request.uri", "url": "http.request.uri", "query": "http.request.uri.query",
	"dir": "http.request.uri.path.dir", "file": "http.request.uri.path.file", "orig_path": "http.request.orig_uri.path", "orig_uri": "http.request.orig_uri",
	"remote": "client_ip", "remote_port": "client_ip", "uuid": "client_ip", "user": "http.auth.user.id", "username": "http.auth.user.id",
	"user_id": "http.auth.user.id", "auth.user.id": "http.auth.user.id", "tls_client_subject": "http.request.tls.client.subject",
	"tls_client_fingerprint": "http.request.tls.client.fingerprint", "tls_client_serial": "http.request.tls.client.serial", "tls_client_issuer": "http.request.tls.client.issuer",
	"tls_server_name": "http.request.tls.server_name", "tls_version": "http.request.tls.version", "tls_cipher": "http.request.tls.cipher_suite",
}

// slippedPrefixes do the same for families of names.
var slippedPrefixes = [][2]string{
	{"headers.", "http.request.header."}, {"header.", "http.request.header."}, {"http.header.", "http.request.header."}, {"http.headers.", "http.request.header."},
	{"cookies.", "http.request.cookie."}, {"cookie.", "http.request.cookie."}, {"queries.", "http.request.uri.query."}, {"query.", "http.request.uri.query."},
	{"params.", "http.request.uri.query."}, {"vars.", "http.vars."}, {"var.", "http.vars."}, {"labels.", "http.request.host.labels."},
	{"path.", "http.request.uri.path."}, {"url.", "http.request.uri."}, {"re.", "http.regexp."}, {"regexp.", "http.regexp."}, {"tls.", "http.request.tls."},
	{"uri.", "http.request.uri."}, {"host.labels.", "http.request.host.labels."}, {"request.", "http.request."}, {"req.", "http.request."},
}

// MeansClientIP reports whether a name that Caddy doesn't have is a common way to write the
// client's or the peer's address.
func MeansClientIP(name string) bool {
	if knownToCaddy(name) {
		return false
	}
	short, _ := cutPrefixFold(name, requestPrefix)
	meant := slips[strings.ToLower(short)]
	return meant == caddyhttp.ClientIPVarKey || meant == peerName
}

// suggestion returns what a name was probably meant to be, without braces, "" if it is none that
// people write.
func suggestion(name string) string {
	short, _ := cutPrefixFold(name, requestPrefix)
	if s, ok := slips[strings.ToLower(short)]; ok && s != name {
		return s
	}
	for _, p := range slippedPrefixes {
		for _, from := range []string{name, short} {
			field, ok := cutPrefixFold(from, p[0])
			if to := p[1] + field; ok && to != name && plausible(to) {
				return to
			}
		}
	}
	if strings.HasPrefix(name, "remote.") { // of other limiters
		return caddyhttp.ClientIPVarKey
	}
	return ""
}

// cutPrefixFold is strings.CutPrefix without regard to case.
func cutPrefixFold(s, prefix string) (after string, found bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}

// plausible reports whether a name may exist.
func plausible(name string) bool {
	return !strings.HasPrefix(name, requestPrefix) || knownToCaddy(name)
}

// knownToCaddy asks Caddy's own replacer for a name in http.request., with a request made up for
// that.
func knownToCaddy(name string) bool {
	if strings.HasSuffix(name, ".") {
		return false // a family without a member
	}
	repl := caddy.NewReplacer()
	r := OnLoopback(&http.Request{Method: http.MethodGet, Host: "example.com", URL: &url.URL{Path: "/a/b"}, RemoteAddr: "127.0.0.1:1"})
	caddyhttp.PrepareRequest(r, repl, nil, new(caddyhttp.Server))
	_, known := repl.Get(name)
	return known
}

// OnLoopback returns a request that no server has received as if one on the loopback address had:
// Caddy's placeholders of the local address panic without one.
func OnLoopback(r *http.Request) *http.Request {
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}
	if r.TLS != nil {
		local.Port = 443
	}
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			local.Port = int(n)
		}
	}
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
}
