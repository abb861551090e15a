package reqkey

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
)

// lines is a request with these lines of headers, name and value in turn, and a query.
func lines(query string, headers ...string) func(*http.Request) {
	return func(r *http.Request) {
		r.URL.RawQuery = query
		for i := 0; i < len(headers); i += 2 {
			r.Header[headers[i]] = append(r.Header[headers[i]], headers[i+1])
		}
	}
}

// keyWith makes a key of a request that is changed.
func keyWith(t *testing.T, template string, change func(*http.Request)) (string, bool) {
	t.Helper()
	r := request("/a")
	change(r)
	r, _ = prepared(t, r, "192.0.2.1")
	key, empty := mustKey(t, template, 32, 64).Append([]byte("head"), r, Vars(r))
	return strings.TrimPrefix(string(key), "head"), empty
}

// However several values are written, and whatever they are, such requests have one key: not that
// of the first value or the last, not an empty one, and not one for each client.
func TestSeveralValuesAreOneKey(t *testing.T) {
	const ofHeader, ofQuery, ofCookie = "{http.request.header.x-api-key}", "{http.request.uri.query.user}", "{http.request.cookie.sid}"
	for _, c := range []struct {
		template  string
		change    func(*http.Request)
		ambiguous bool
		same      func(*http.Request) // has the same key where it is not ambiguous
	}{
		{ofHeader, lines("", "X-Api-Key", "K1", "X-Api-Key", "0"), true, nil},
		{ofHeader, lines("", "X-Api-Key", "0", "X-Api-Key", "K1"), true, nil},
		{ofHeader, lines("", "X-Api-Key", "", "X-Api-Key", "K1"), true, nil},
		{ofHeader, lines("", "X-Api-Key", "K1", "X-Api-Key", "K1", "X-Api-Key", "0"), true, nil},
		{ofHeader + "{client_ip}", lines("", "X-Api-Key", "K1", "X-Api-Key", "0"), true, nil},
		{"{client_ip}" + ofHeader, lines("", "X-Api-Key", "K1", "X-Api-Key", "0"), true, nil},
		{ofHeader, lines("", "X-Api-Key", "K1", "X-Api-Key", "K1"), false, lines("", "X-Api-Key", "K1")},
		{ofHeader, lines("", "X-Api-Key", "K1", "X-Api-Key", " K1\t"), false, lines("", "X-Api-Key", "K1")},
		{ofHeader, lines("", "X-Api-Key", " \tK1 "), false, lines("", "X-Api-Key", "K1")},
		{ofHeader, lines("", "X-Api-Key", "K1", "X-Other", "0"), false, lines("", "X-Api-Key", "K1")},
		{"{http.request.header.Cookie}", lines("", "Cookie", "a=1", "Cookie", "b=2"), false, lines("", "Cookie", "a=1,b=2")},
		{"{http.request.header.X-Other}", lines("", "X-Api-Key", "K1", "X-Api-Key", "0"), false, lines("")},
		{ofQuery, lines("user=bob&user=0"), true, nil},
		{ofQuery, lines("user=0&x=1&%75ser=bob"), true, nil},
		{ofQuery, lines("user=bob&user="), true, nil},
		{ofQuery, lines("user=bob&user"), true, nil},
		{ofQuery, lines("user=bob&user=b%6fb&user=bob"), false, lines("user=bob")},
		{ofQuery, lines("user=bob&users=0&use=1&USER=2&users;x=3&user=%zz"), false, lines("user=bob")},
		{ofQuery, lines("user=bob&x;user=0"), true, nil}, // for some backends two pairs
		{ofQuery, lines("user=bob;x"), true, nil},
		{ofQuery, lines("x&&=&user=b+b"), false, lines("user=b%20b")},
		{ofCookie, lines("", "Cookie", "sid=1; SID=2"), true, nil},
		{ofCookie, lines("", "Cookie", "sID=1", "Cookie", "sid=2"), true, nil},
		{ofCookie, lines("", "Cookie", "SID=1; sid=1"), false, lines("", "Cookie", "sid=1")},
		{ofCookie, lines("", "Cookie", "sid=1; sid=2"), false, lines("", "Cookie", "sid=1")},
		{ofCookie, lines("", "Cookie", "sid=1; sidecar=2; si=3"), false, lines("", "Cookie", "sid=1")},
	} {
		r := request("/?")
		c.change(r)
		key, empty := keyWith(t, c.template, c.change)
		if IsAmbiguous([]byte(key)) != c.ambiguous || c.ambiguous && (empty || key != "\x02") {
			t.Errorf("%s of %v %q: key %x, empty %v, want it ambiguous: %v", c.template, r.Header, r.URL.RawQuery, key, empty, c.ambiguous)
		}
		if c.same == nil {
			continue
		}
		if want, none := keyWith(t, c.template, c.same); key != want || empty != none {
			t.Errorf("%s of %v %q: key %q, %v, want that of the clean spelling, %q", c.template, r.Header, r.URL.RawQuery, key, empty, want)
		}
	}
}

// A value never makes the key of ambiguous requests.
func TestAmbiguousIsNoValue(t *testing.T) {
	for _, value := range []string{"", "\x02", "\x01\x02", ambiguousText, ","} {
		if key, _ := keyWith(t, "{http.request.header.A}", lines("", "A", value)); IsAmbiguous([]byte(key)) {
			t.Errorf("the value %q has the key %x", value, key)
		}
	}
	for _, key := range []string{"", "\x00", "\xff\x02", "\x02\x02", "\x01\x00"} {
		if IsAmbiguous([]byte(key)) {
			t.Errorf("the key %x is ambiguous", key)
		}
	}
	k := mustKey(t, "{http.request.header.A}:{client_ip}", 32, 64)
	if key, err := k.Parse(k.Text([]byte("\x02"))); err != nil || string(key) != "\x02" {
		t.Errorf("Parse(%q) = %x, %v", k.Text([]byte("\x02")), key, err)
	}
	if key, err := mustKey(t, "{client_ip}", 32, 64).Parse(ambiguousText); err != nil || IsAmbiguous(key) {
		t.Errorf("Parse of an ambiguous key of addresses: %x, %v", key, err)
	}
}

// The case of a scheme and the space behind it make no other key, and a clean spelling keeps its
// own.
func TestCredentialsHaveOneSpelling(t *testing.T) {
	const template = "{http.request.header.Authorization}"
	for clean, others := range map[string][]string{
		"Bearer aB c":         {"bearer aB c", "BEARER aB c", "bEARER \t aB c", " Bearer aB c "},
		"Basic dXNlcjpwdw==":  {"basic dXNlcjpwdw==", "BASIC  dXNlcjpwdw=="},
		"AWS4-HMAC-SHA256 C=": {"aws4-hmac-sha256 C="},
		"DPoP x":              {"dpop x", "Dpop x"},
		"Made-up x":           {"made-up x", "MADE-UP x"},
		"token":               {" token"},
	} {
		want := "\x01" + string(rune(len(clean))) + clean
		for _, value := range append(others, clean) {
			if key, _ := keyWith(t, template, lines("", "Authorization", value)); key != want {
				t.Errorf("%q: key %q, want %q", value, key, want)
			}
		}
	}
	seen := map[string]string{}
	for _, value := range []string{"Bearer a", "Bearer A", "Basic a", "a", "A", "Bearer", "Bearer a b"} {
		key, _ := keyWith(t, template, lines("", "Authorization", value))
		if seen[key] != "" {
			t.Errorf("%q and %q have one key", value, seen[key])
		}
		seen[key] = value
	}
	k := mustKey(t, template, 32, 64)
	if key, err := k.Parse("bearer a"); err != nil || k.Text(key) != "Bearer a" {
		t.Errorf("Parse(bearer a) = %q, %v", key, err)
	}
}

// The name that a client sends as it begins TLS has no case, as that of a host.
func TestServerNamesHaveNoCase(t *testing.T) {
	of := func(name string) string {
		key, _ := keyWith(t, "{http.request.tls.server_name}", func(r *http.Request) { r.TLS = &tls.ConnectionState{ServerName: name} })
		return key
	}
	if key := of("a.example"); of("A.Example") != key || of("b.example") == key {
		t.Errorf("A.Example has the key %q, a.example %q, b.example %q", of("A.Example"), key, of("b.example"))
	}
}
