package reqkey

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// requestNames are placeholders of Caddy, without http.request.
var requestNames = []string{
	"method", "scheme", "proto", "host", "port", "hostport", "remote.host", "remote.port", "uri", "uri.path", "uri.path.file", "uri.path.dir", "uri.query",
	"uri.prefixed_query", "orig_method", "orig_uri", "orig_uri.path", "orig_uri.path.file", "orig_uri.path.dir", "orig_uri.query", "local", "local.host",
	"local.port", "tls.version", "tls.cipher_suite", "tls.resumed", "tls.proto", "tls.server_name", "tls.ech", "tls.client.fingerprint", "tls.client.public_key",
	"tls.client.public_key_sha256", "tls.client.issuer", "tls.client.serial", "tls.client.subject", "tls.client.san.dns_names.0", "tls.client.san.emails.0",
	"tls.client.san.ips.0", "tls.client.san.uris.0", "body",
}

// everyPlaceholder are those that this package knows by name or by family, those of Caddy, and some
// that only other modules can know.
func everyPlaceholder() (names []string) {
	names = append(slices.Collect(maps.Keys(placeholders)), slices.Collect(maps.Values(slips))...)
	for _, name := range requestNames {
		names = append(names, requestPrefix+name)
	}
	for _, family := range slippedPrefixes {
		names = append(names, family[1]+"a", family[1]+"0")
	}
	for _, family := range alwaysPrefixes {
		names = append(names, family, family+"0")
	}
	names = append(names, "customer", "http.vars.customer", "http.auth.user.id", "http.regexp.tenant.1", "geoip2.country_code",
		"http.error.status_code", "http.request.uri.path.1", "http.request.orig_uri.path.1", "http.request.remote.host/24,64", "http.request.header.X-Api-Key")
	slices.Sort(names)
	return slices.Compact(names)
}

// An address can have a part in whatever a handler before may have made of it, and in what only
// another module knows. It has none in what the server itself knew before.
func TestWhichPlaceholdersAnAddressMayHaveAPartIn(t *testing.T) {
	apart := 0
	for _, name := range everyPlaceholder() {
		own := strings.HasPrefix(name, "http.request.tls.") || strings.HasPrefix(name, "http.request.orig_")
		if got := mustKey(t, "{"+name+"}", 32, 64).IsProven(); got != own {
			t.Errorf("a key by {%s} is proven in early data: %t, want %t", name, got, own)
		}
		if got := NewNumber("{" + name + "}").IsProven(); got != own {
			t.Errorf("a number by {%s} is proven in early data: %t, want %t", name, got, own)
		}
		if !own {
			apart++
		}
	}
	if apart < 40 {
		t.Errorf("an address may have a part in %d placeholders, want many more", apart)
	}
	for template, want := range map[string]bool{ // one value of several is enough
		"all": true, "{http.request.orig_uri.path}{http.request.tls.proto}": true, "{http.request.tls.server_name}{customer}": false,
		"{client_ip}{http.request.tls.server_name}": false,
	} {
		if got := mustKey(t, template, 32, 64).IsProven(); got != want {
			t.Errorf("a key by %s is proven in early data: %t, want %t", template, got, want)
		}
	}
}
