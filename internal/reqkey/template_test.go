package reqkey

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// prepared returns a request as a handler of Caddy's gets it, from a peer that the server found to
// be clientIP ("" leaves the variable out).
func prepared(t testing.TB, r *http.Request, clientIP string) (*http.Request, *caddy.Replacer) {
	t.Helper()
	repl := caddy.NewReplacer()
	r = caddyhttp.PrepareRequest(r, repl, nil, nil)
	if clientIP == "" {
		caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, nil)
	} else {
		caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, clientIP)
	}
	return r, repl
}

func request(target string) *http.Request { return httptest.NewRequest(http.MethodGet, target, nil) }

func mustKey(t testing.TB, template string, v4bits, v6bits int) *Template {
	t.Helper()
	k, err := Compile(template, v4bits, v6bits)
	if err != nil {
		t.Fatalf("Compile(%q, %d, %d): %v", template, v4bits, v6bits, err)
	}
	return k
}

// plain is the same template without the ways past the replacer.
func (t *Template) plain() *Template {
	slow := *t
	slow.parts, slow.clientIP = slices.Clone(t.parts), false
	for i := range slow.parts {
		slow.parts[i].read = nil
	}
	return &slow
}

// keyOf makes the key by both ways and insists that they agree.
func keyOf(t testing.TB, k *Template, r *http.Request) (string, bool) {
	t.Helper()
	fast, empty := k.Append(nil, r, Vars(r))
	slow, slowEmpty := k.plain().Append(nil, r, Vars(r))
	if !bytes.Equal(fast, slow) || empty != slowEmpty {
		t.Fatalf("the short way gives %x, %v, the replacer's %x, %v", fast, empty, slow, slowEmpty)
	}
	return string(fast), empty
}

func TestAddressesOfOneClientGiveOneKey(t *testing.T) {
	for _, test := range []struct {
		a, b           string
		v4bits, v6bits int
		same           bool
	}{
		{"192.0.2.1", "192.0.2.1", 32, 64, true},
		{"192.0.2.1", "192.0.2.2", 32, 64, false},
		{"192.0.2.1", "::ffff:192.0.2.1", 32, 64, true},
		{"192.0.2.1", "::ffff:c000:201", 32, 64, true},
		{"::ffff:192.0.2.1", "::ffff:198.51.100.1", 32, 64, false}, // CVE-2026-30827
		{"192.0.2.1", "64:ff9b::192.0.2.1", 32, 64, true},          // behind NAT64
		{"192.0.2.1", "64:ff9b::c000:201", 32, 64, true},
		{"64:ff9b::192.0.2.1", "64:ff9b::198.51.100.1", 32, 64, false},
		{"64:ff9b::192.0.2.1", "64:ff9b::192.0.2.200", 24, 64, true},
		{"192.0.2.1", "64:ff9b::1:c000:201", 32, 64, false}, // beyond the /96
		{"192.0.2.1", "64:ff9c::192.0.2.1", 32, 64, false},
		{"192.0.2.1", "64:ff9b:1::192.0.2.1", 32, 64, false},
		{"192.0.2.1", "192.0.2.200", 24, 64, true},
		{"192.0.2.1", "192.0.3.1", 24, 64, false},
		{"192.0.2.1", "192.0.3.1", 23, 64, true},
		{"192.0.2.1", "192.0.4.1", 23, 64, false},
		{"2001:db8::1", "2001:db8::2", 32, 64, true},
		{"2001:db8::1", "2001:db8:0:0:ffff::", 32, 64, true},
		{"2001:db8::1", "2001:db8:0:1::1", 32, 64, false},
		{"2001:db8::1", "2001:db8:0:1::1", 32, 63, true},
		{"2001:db8::1", "2001:db8:0:1::1", 32, 56, true},
		{"2001:db8::1", "2001:db8::2", 32, 128, false},
		{"2001:db8::1", "2001:0DB8:0:0:0:0:0:0001", 32, 128, true}, // CVE-2026-45364
		{"fe80::1%eth0", "fe80::1%eth1", 32, 128, true},
		{"fe80::1%eth0", "fe80::1", 32, 128, true},
		{"::1", "0.0.0.1", 32, 128, false},
	} {
		k := mustKey(t, "{client_ip}", test.v4bits, test.v6bits)
		ra, _ := prepared(t, request("/"), test.a)
		rb, _ := prepared(t, request("/"), test.b)
		a, _ := keyOf(t, k, ra)
		b, _ := keyOf(t, k, rb)
		if (a == b) != test.same {
			t.Errorf("/%d /%d: %s -> %x, %s -> %x; want the same: %v", test.v4bits, test.v6bits, test.a, a, test.b, b, test.same)
		}
	}
}

func TestAddressIsGroupedWhereverItComesFrom(t *testing.T) {
	k := mustKey(t, "{http.request.host}/{http.request.header.X-Client}", 24, 64)
	keys := map[string]bool{}
	for _, value := range []string{"192.0.2.1", "192.0.2.77", "::ffff:192.0.2.9"} {
		r := request("http://example.com/")
		r.Header.Set("X-Client", value)
		r, _ = prepared(t, r, "198.51.100.1")
		key, _ := keyOf(t, k, r)
		keys[key] = true
	}
	if len(keys) != 1 {
		t.Errorf("addresses of one /24 in a header gave %d keys, want 1", len(keys))
	}
	remote := mustKey(t, "{http.request.remote.host}", 32, 64)
	client := mustKey(t, "{client_ip}", 32, 64)
	r := request("/")
	r.RemoteAddr = "[2001:db8::5]:1234"
	r, _ = prepared(t, r, "2001:db8::6")
	a, _ := keyOf(t, remote, r)
	b, _ := keyOf(t, client, r)
	if a != b {
		t.Errorf("remote host and client IP of one /64: %x and %x", a, b)
	}
}

func TestClientIPFallsBackOnThePeer(t *testing.T) {
	k := mustKey(t, "{client_ip}", 32, 64)
	for _, test := range []struct {
		remote string
		empty  bool
	}{
		{"192.0.2.1:1234", false},
		{"[::ffff:192.0.2.1]:1234", false},
		{"192.0.2.1", false},
		{"@", true},
		{"/run/caddy.sock", true},
		{"", true},
	} {
		r := request("/")
		r.RemoteAddr = test.remote
		r, _ = prepared(t, r, "")
		key, empty := keyOf(t, k, r)
		if empty != test.empty {
			t.Errorf("RemoteAddr %q: empty = %v, want %v", test.remote, empty, test.empty)
		}
		if want := "\x04\xc0\x00\x02\x01"; !empty && key != want {
			t.Errorf("RemoteAddr %q: key %x, want %x", test.remote, key, want)
		}
		marked := k.AppendClientIP(nil, r, Vars(r))
		if hasAddress := len(marked) > 1; hasAddress == test.empty || len(marked) == 0 || string(marked) == key {
			t.Errorf("RemoteAddr %q: AppendClientIP = %x", test.remote, marked)
		}
	}
	// A request outside of Caddy has no variables at all.
	r := request("/")
	r.RemoteAddr = "192.0.2.1:1234"
	if key, empty := k.Append(nil, r, nil); empty || string(key) != "\x04\xc0\x00\x02\x01" {
		t.Errorf("without variables: %x, %v", key, empty)
	}
}

// Clients with an address have a key each in place of an empty one. Those without one share one.
func TestStandInsOfEmptyKeys(t *testing.T) {
	keys := map[string]bool{}
	for _, client := range []string{"192.0.2.1", "2001:db8::1", ""} {
		r := request("/")
		r.RemoteAddr = "@"
		r, _ = prepared(t, r, client)
		keys[string(mustKey(t, "all", 32, 64).AppendClientIP(nil, r, Vars(r)))] = true
	}
	if len(keys) != 3 {
		t.Errorf("3 clients have the keys %v", keys)
	}
}

func TestPartsCannotRunTogether(t *testing.T) {
	k := mustKey(t, "{http.request.header.A}:{http.request.header.B}", 32, 64)
	seen := map[string][2]string{}
	for _, parts := range [][2]string{
		{"a:b", "c"}, {"a", "b:c"}, {"a:b:c", ""}, {"", "a:b:c"}, {"a", ""}, {"", "a"}, {"\x01\x01a", ""}, {"", "\x01\x01a"},
		{"\x01", "\x01"}, {"\x01\x01", ""}, {"192.0.2.1", ""}, {"\x04\xc0\x00\x02\x01", ""}, {"\xc0\x00\x02\x01", ""}, {"::c000:201", ""},
	} {
		r := request("/")
		r.Header["A"], r.Header["B"] = []string{parts[0]}, []string{parts[1]}
		r, _ = prepared(t, r, "192.0.2.1")
		key, _ := keyOf(t, k, r)
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q have one key", parts, other)
		}
		seen[key] = parts
	}
}

func TestHostAndPathHaveOneSpelling(t *testing.T) {
	for _, test := range []struct {
		template string
		a, b     func(r *http.Request)
		same     bool
	}{
		{"{http.request.host}", atHost("example.com"), atHost("EXAMPLE.com"), true},
		{"{http.request.host}", atHost("example.com"), atHost("example.com."), true},
		{"{http.request.host}", atHost("example.com"), atHost("example.com:8080"), true},
		{"{http.request.host}", atHost("example.com"), atHost("www.example.com"), false},
		{"{http.request.host}", atHost("[2001:db8::1]"), atHost("[2001:DB8::1]:443"), true},
		{"{http.request.hostport}", atHost("example.com:80"), atHost("Example.com.:80"), true},
		{"{http.request.hostport}", atHost("example.com:80"), atHost("example.com:81"), false},
		{"{http.request.uri.path}", atPath("/login"), atPath("//login"), true},
		{"{http.request.uri.path}", atPath("/login"), atPath("/x/../login"), true},
		{"{http.request.uri.path}", atPath("/login"), atPath("/./login/"), true},
		{"{http.request.uri.path}", atPath("/login"), atPath("/%6cogin"), true},
		{"{http.request.uri.path}", atPath("/login"), atPath("/Login"), false},
		{"{http.request.uri.path_escaped}", atPath("/login"), atPath("//%6cogin"), true},
		{"{http.request.orig_uri.path}", atPath("/login"), atPath("//login"), true},
		{"{http.request.uri}", atPath("/login?a=b"), atPath("//x/../%6cogin?a=b"), true},
		{"{http.request.uri}", atPath("/login?a=b"), atPath("/login?a=c"), false},
		{"{http.request.uri}", atPath("/login?a"), atPath("/login%3Fa"), false},
		{"{http.request.uri_escaped}", atPath("/login?a=b"), atPath("//login?a=b"), true},
	} {
		k := mustKey(t, test.template, 32, 64)
		keys := [2]string{}
		for i, change := range []func(*http.Request){test.a, test.b} {
			r := request("http://example.com/")
			change(r)
			r, _ = prepared(t, r, "192.0.2.1")
			keys[i], _ = keyOf(t, k, r)
		}
		if (keys[0] == keys[1]) != test.same {
			t.Errorf("%s: %q and %q; want the same: %v", test.template, keys[0], keys[1], test.same)
		}
	}
}

func atHost(h string) func(*http.Request) { return func(r *http.Request) { r.Host = h } }

func atPath(p string) func(*http.Request) {
	return func(r *http.Request) {
		u, err := r.URL.Parse("http://example.com" + p)
		if err != nil {
			panic(err)
		}
		r.URL, r.RequestURI = u, u.RequestURI()
	}
}

func TestEmptyKeyIsOneThatTellsNobodyApart(t *testing.T) {
	for _, test := range []struct {
		template string
		empty    bool
	}{
		{"{http.request.header.X-Api-Key}", true},
		{"key-{http.request.header.X-Api-Key}", true},
		{"{http.request.header.X-Api-Key}{http.request.cookie.session}", true},
		{"{http.request.host}:{http.request.header.X-Api-Key}", true},
		{"{http.request.method} {http.request.uri.path} {http.vars.tenant}", true},
		{"{env.HOME}{tenant}", true},
		{"{http.request.header.X-Api-Key}{http.request.header.X-There}", false},
		{"{http.request.header.X-Api-Key}{client_ip}", false},
		{"{http.request.host}", false},
		{"{http.request.uri.query}", true},
		{"{http.request.host}{http.request.uri.query}", false},
		{"", false},
		{"all", false},
		{`\{client_ip\}`, false},
		{"{http.request.tls.client.subject}", true},
		{"{http.request.tls.client.fingerprint}", true},
		{"{http.request.tls.client.serial}", true},
		{"{http.request.uri.path.1}", false},
		{"{http.request.uri.path.7}", true},
	} {
		r := request("http://example.com/a/b")
		r.Header.Set("X-There", "1")
		r.TLS = &tls.ConnectionState{HandshakeComplete: true}
		r, _ = prepared(t, r, "192.0.2.1")
		key, empty := keyOf(t, mustKey(t, test.template, 32, 64), r)
		if empty != test.empty {
			t.Errorf("%s: empty = %v, want %v", test.template, empty, test.empty)
		}
		if len(key) == 0 || key[0] == tagClientIP {
			t.Errorf("%s: key %x could be taken for one that stands in for it", test.template, key)
		}
	}
}

func TestClientCertificateIsAKey(t *testing.T) {
	r := request("/")
	r.TLS = &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{{SerialNumber: big.NewInt(7)}}}
	r, _ = prepared(t, r, "192.0.2.1")
	if key, empty := keyOf(t, mustKey(t, "{http.request.tls.client.serial}", 32, 64), r); empty || key != "\x01\x017" {
		t.Errorf("serial number 7: %q, %v", key, empty)
	}
}

func TestValuesAreTakenAsTheyAre(t *testing.T) {
	k := mustKey(t, "{http.request.header.X}-{tenant}", 32, 64)
	keys := map[string]string{}
	for _, value := range []string{
		"{client_ip}", "{http.request.header.X}", "{}", "{", "}", `\{`, "{env.HOME}", "{file./etc/passwd}", "a\r\nb", "a", "\x00", "\xff\xfe", "%", "%eth0",
		":::", "1.2.3.", "1.2.3.4.5", "....", "-", strings.Repeat("a", 20_000), strings.Repeat("\x00", 20_000),
	} {
		r := request("/")
		r.Header["X"] = []string{value}
		r, repl := prepared(t, r, "192.0.2.1")
		repl.Set("tenant", value)
		key, empty := keyOf(t, k, r)
		if empty || strings.Count(key, value) < 2 {
			t.Errorf("value %.40q is not in its key %.80q", value, key)
		}
		if other, ok := keys[key]; ok {
			t.Errorf("%.40q and %.40q have one key", value, other)
		}
		keys[key] = value
		checkText(t, k.Text([]byte(key)))
	}
}

func TestErrorIsNoValue(t *testing.T) {
	r, repl := prepared(t, request("/"), "192.0.2.1")
	repl.Set("tenant", errors.New("broken"))
	if key, empty := keyOf(t, mustKey(t, "{tenant}", 32, 64), r); !empty {
		t.Errorf("an error as value: %q is not empty", key)
	}
}

func TestReplacerIsLookedUpWhereItIsNeeded(t *testing.T) {
	r, repl := prepared(t, request("/"), "192.0.2.1")
	repl.Set("tenant", "t1")
	k := mustKey(t, "{tenant}", 32, 64)
	if key, _ := k.Append(nil, r, nil); string(key) != "\x01\x02t1" {
		t.Errorf("the key is %x", key)
	}
	if _, empty := k.Append(nil, request("/"), nil); !empty {
		t.Error("outside of Caddy a placeholder has a value")
	}
}

func TestStandInNeverMeetsAnOrdinaryKey(t *testing.T) {
	r := request("/")
	r.Header.Set("X", "192.0.2.1")
	r, _ = prepared(t, r, "192.0.2.1")
	k := mustKey(t, "{http.request.header.X}", 32, 64)
	ordinary, _ := keyOf(t, k, r)
	standIn := k.AppendClientIP([]byte("head"), r, Vars(r))
	if want := "head\xff" + ordinary; string(standIn) != want {
		t.Errorf("AppendClientIP = %x, want %x", standIn, want)
	}
}

func TestTemplatesThatDoNotCompile(t *testing.T) {
	for _, test := range []struct {
		template       string
		v4bits, v6bits int
		want           string
	}{
		{"{client_ip", 32, 64, "not closed"},
		{"a{", 32, 64, "not closed"},
		{"{}", 32, 64, "no name"},
		{"{client_ip}", 0, 64, "1 to 32"},
		{"{client_ip}", 33, 64, "1 to 32"},
		{"{client_ip}", 32, 0, "1 to 128"},
		{"{client_ip}", 32, 129, "1 to 128"},
	} {
		_, err := Compile(test.template, test.v4bits, test.v6bits)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Compile(%q, %d, %d) = %v, want an error with %q", test.template, test.v4bits, test.v6bits, err, test.want)
		}
	}
}

func TestDefaultKeyDoesNotAllocate(t *testing.T) {
	for _, test := range []struct{ template, client string }{
		{"{client_ip}", "192.0.2.1"},
		{"{client_ip}", "2001:db8::1"},
		{"{client_ip}", "::ffff:192.0.2.1"},
		{"{client_ip}/{http.request.header.X-Api-Key}", "192.0.2.1"},
		{"{http.request.host}", "192.0.2.1"},
		{"{http.request.host}+{client_ip}", "192.0.2.1"},
		{"all of them", "192.0.2.1"},
		{"{http.request.header.X-Api-Key}{http.request.header.Authorization}{http.request.uri.query.c}", "192.0.2.1"},
		{"{http.request.hostport} {http.request.remote.host} {http.vars.client_ip}", "2001:db8::1"},
		{"{http.request.scheme}://{http.request.host}{http.request.uri.path}?{http.request.uri.query} {http.request.method} {client_ip}", "192.0.2.1"},
	} {
		r := request("/a/b?x=1&c=d&y=2")
		r.Header.Set("X-Api-Key", "secret")
		r.Header.Set("Authorization", "Bearer a")
		r, _ = prepared(t, r, test.client)
		vars := Vars(r)
		k := mustKey(t, test.template, 32, 64)
		dst := make([]byte, 0, 64)
		if n := testing.AllocsPerRun(100, func() { dst, _ = k.Append(dst[:0], r, vars) }); n != 0 {
			t.Errorf("%s of %s: %v allocations, want 0", test.template, test.client, n)
		}
		if n := testing.AllocsPerRun(100, func() { dst = k.AppendClientIP(dst[:0], r, vars) }); n != 0 {
			t.Errorf("AppendClientIP of %s: %v allocations, want 0", test.client, n)
		}
	}
}

// What is read from the request without the replacer is what the replacer reads, whatever a client
// sends.
func FuzzKeyBothWays(f *testing.F) {
	f.Add("example.com", "192.0.2.1:1234", "GET", "/a/../b", "q=1", "192.0.2.1", "secret", "tenant")
	f.Add("EXAMPLE.com.:443", "[2001:db8::1%eth0]:1", "get", "//", "", "::ffff:192.0.2.1", "", "")
	f.Add("[::1]", "/run/socket", "", "", "%", "", ",", "{http.request.host}")
	f.Add("[::1]:80:80", "a:b:c", "\x00", "\xff", "\n", "{}", "1.2.3.4", "::1")
	f.Add(":", "]:1", "[", "*", "?", ":", "", "[a]:b")
	var templates []*Template
	for _, t := range []string{
		"{client_ip}", "{http.request.host}", "{http.request.hostport}{http.request.uri.path}", "x{http.request.remote.host}-{http.request.method}",
		"{http.request.scheme}{http.request.uri.query}{http.vars.v}", "{http.request.header.A}{http.request.host}{client_ip}",
	} {
		k, err := Compile(t, 24, 56)
		if err != nil {
			f.Fatal(err)
		}
		templates = append(templates, k)
	}
	f.Fuzz(func(t *testing.T, host, remote, method, path, query, client, header, value string) {
		r := request("/")
		r.Host, r.RemoteAddr, r.Method, r.URL.Path, r.URL.RawQuery = host, remote, method, path, query
		r.Header["A"] = []string{header}
		r, _ = prepared(t, r, client)
		caddyhttp.SetVar(r.Context(), "v", value)
		for _, k := range templates {
			keyOf(t, k, r)
		}
	})
}

func FuzzKey(f *testing.F) {
	f.Add("a:b", "c", "a", "b:c", "192.0.2.1")
	f.Add("192.0.2.1", "::1", "{client_ip}", "{}", "2001:db8::1%eth0")
	f.Add("\x00", "\xff\x01", "", "\r\n", "@")
	k, err := Compile(`x{http.request.header.A}\{{client_ip}{b}{http.request.header.C}`, 24, 56)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a1, b1, a2, b2, client string) {
		one, two := fuzzKey(t, k, a1, b1, client), fuzzKey(t, k, a2, b2, client)
		a1, a2 = strings.Trim(a1, " \t"), strings.Trim(a2, " \t") // is no part of a header
		same := canonical(a1, k) == canonical(a2, k) && canonical(b1, k) == canonical(b2, k)
		if (one == two) != same {
			t.Errorf("%q+%q and %q+%q: same key %v, want %v", a1, b1, a2, b2, one == two, same)
		}
		checkText(t, k.Text([]byte(one)))
		checkText(t, k.Text([]byte(a1)))
		if k, err := Compile(a1, 32, 64); err == nil {
			r, _ := prepared(t, request("/"), client)
			key, _ := k.Append(nil, r, Vars(r))
			checkText(t, k.Text(key))
		}
	})
}

// canonical is what two values must have in common to be one: an independent reading of addresses.
func canonical(value string, k *Template) string {
	if addr, ok := parseIP(value); ok {
		bits := k.v6bits
		if addr.Is4() {
			bits = k.v4bits
		}
		p, _ := addr.Prefix(bits)
		return "address " + p.String()
	}
	return "text " + value
}

func fuzzKey(t *testing.T, k *Template, a, b, client string) string {
	r := request("/")
	r.Header["A"] = []string{a}
	r, repl := prepared(t, r, client)
	repl.Set("b", b)
	key, _ := keyOf(t, k, r)
	return key
}
