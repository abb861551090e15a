package reqkey

import (
	"crypto/tls"
	"maps"
	"slices"
	"strings"
	"testing"
)

// everyPlaceholder are those that this package knows by name or by family, those of Caddy that it
// suggests, and some that only other modules can know.
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

// In early data the key of a placeholder that an address can have a part in, by whatever handler
// before, is not the one that is proven. What the server itself knows is the same.
func TestEveryPlaceholderInEarlyData(t *testing.T) {
	made := func(name string, complete bool) string {
		r := request("http://example.com/a/b")
		r.TLS = &tls.ConnectionState{HandshakeComplete: complete, ServerName: "example.com"}
		r, repl := prepared(t, r, "192.0.2.1")
		repl.Map(func(key string) (any, bool) { return "acme", key == "customer" })
		key, _ := mustKey(t, "{"+name+"}", 32, 64).Append(nil, r, Vars(r))
		return string(key)
	}
	apart := 0
	for _, name := range everyPlaceholder() {
		if poorKeys[name] != "" || strings.HasPrefix(name, "file.") || strings.HasPrefix(name, "time.") || strings.HasPrefix(name, "http.request.local") {
			continue // it differs with each request, or wants a file or a connection
		}
		own := strings.HasPrefix(name, "http.request.tls.") || strings.HasPrefix(name, "http.request.orig_")
		proven, early := made(name, true), made(name, false)
		if IsUnproven([]byte(proven)) || IsUnproven([]byte(early)) == own {
			t.Errorf("{%s}: the key is %x, and in early data %x; want one apart: %v", name, proven, early, !own)
		}
		if !own {
			apart++
		}
	}
	if apart < 40 {
		t.Errorf("%d placeholders count apart in early data, want many more", apart)
	}
}

// One value of several is enough, also one that is missing, and what only looks like an address.
func TestValuesInEarlyData(t *testing.T) {
	for template, apart := range map[string]bool{
		"all": false, "{http.request.tls.server_name}": false, "{http.request.orig_uri.path}{http.request.tls.proto}": false,
		"{http.request.tls.server_name}{customer}": true, "{http.request.orig_uri.path.1}": true,
	} {
		r := request("http://example.com/a/192.0.2.1")
		r.TLS = &tls.ConnectionState{ServerName: "example.com"}
		r, _ = prepared(t, r, "192.0.2.1")
		if key, _ := mustKey(t, template, 32, 64).Append(nil, r, Vars(r)); IsUnproven(key) != apart {
			t.Errorf("%s: the key in early data is %x, want it apart: %v", template, key, apart)
		}
	}
}

// A number that an address may have a part in is not more than the default, and may be less.
func TestNumbersInEarlyData(t *testing.T) {
	for value, want := range map[string]int64{"unlimited": 60, "1000": 60, "60": 60, "5": 5, "0": 0} {
		r := request("/")
		r, repl := prepared(t, r, "192.0.2.1")
		repl.Map(func(key string) (any, bool) { return value, key == "plan" })
		n, _, ok := NewNumber("{plan}").Read(r, Vars(r))
		if got := NewNumber("{plan}").InEarlyData(n, 60); !ok || got != want {
			t.Errorf("the plan %s in early data: %d, want %d", value, got, want)
		}
	}
	if got := NewNumber("{http.request.tls.client.subject}").InEarlyData(Unlimited, 60); got != Unlimited {
		t.Errorf("a number of a client certificate in early data: %d, want it as it is", got)
	}
}

func TestAKeyIsMarkedOnce(t *testing.T) {
	keys := AsUnproven(AsUnproven([]byte("head\x00"), 4), 4)
	if string(keys) != "head\xfe\x00" || string(AsProven(keys[4:])) != "\x00" {
		t.Errorf("a key that is marked twice: %x", keys)
	}
	if keys := AsUnproven([]byte("head"), 4); string(keys) != "head\xfe" {
		t.Errorf("no key, marked: %x", keys)
	}
}
