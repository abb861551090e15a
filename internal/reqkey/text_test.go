package reqkey

import (
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	for _, test := range []struct{ template, header, want string }{
		{"{client_ip}", "", "192.0.2.0/24"},
		{"user:{http.request.header.X}@{client_ip}", "alice", "user:alice@192.0.2.0/24"},
		{"{http.request.header.X}", "2001:db8::1", "2001:db8::/64"},
		{"{http.request.header.X}", "a\r\nb\x1b[31m\u202e\xff\"", `a\r\nb\x1b[31m\u202e\xff\"`},
		{"{http.request.header.X}", "p\u0430ypal", `p\u0430ypal`}, // a Cyrillic letter
		{"{http.request.header.X}", strings.Repeat("a", 20_000), strings.Repeat("a", 128) + "..."},
		{"{http.request.header.X}", strings.Repeat("\x00", 128), strings.Repeat(`\x00`, 32) + "..."},
		{"all", "", "all"},
		{strings.Repeat("l", 200) + "{client_ip}", "", strings.Repeat("l", 128) + "..."},
	} {
		k := mustKey(t, test.template, 24, 64)
		r := request("/")
		r.Header["X"] = []string{test.header}
		r, _ = prepared(t, r, "192.0.2.1")
		key, _ := keyOf(t, k, r)
		got := k.Text([]byte(key))
		if got != test.want {
			t.Errorf("%s: text %q, want %q", test.template, got, test.want)
		}
		if printable := !strings.ContainsAny(got, `\`) && !strings.HasSuffix(got, "..."); printable {
			if back, err := k.Parse(got); err != nil || string(back) != key {
				t.Errorf("%s: the key of %q is %q, %v, want %q", test.template, got, back, err, key)
			}
		}
	}
	k := mustKey(t, "{http.request.header.X}", 24, 64)
	r, _ := prepared(t, request("/"), "192.0.2.1")
	standIn := k.AppendClientIP(nil, r, Vars(r))
	if got, want := k.Text(standIn), "client_ip:192.0.2.0/24"; got != want {
		t.Errorf("text of a stand-in: %q, want %q", got, want)
	}
	for _, key := range []string{"", "\xff", "\x01", "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x01\x05ab", "\x04\x01", "\x06", "\x07abc"} {
		checkText(t, k.Text([]byte(key)))
	}
}

func checkText(t testing.TB, text string) {
	t.Helper()
	if len(text) > MaxText+len("client_ip:...") {
		t.Errorf("text of %d bytes", len(text))
	}
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			t.Errorf("text %q holds %#x", text, text[i])
		}
	}
}

func TestParse(t *testing.T) {
	const header = "{http.request.header.X}"
	for _, test := range []struct{ template, text, same, err string }{
		{template: "{client_ip}", text: "192.0.2.77", same: "192.0.2.0/24"},
		{template: "{client_ip}", text: "::ffff:192.0.2.77", same: "192.0.2.0"},
		{template: "{client_ip}", text: "2001:db8::5", same: "2001:db8::/64"},
		{template: "{client_ip}", text: "client_ip:192.0.2.77", same: "client_ip:192.0.2.0/24"},
		{template: "{http.request.host}", text: "Example.COM.", same: "example.com"},
		{template: header + ":{client_ip}", text: "alice:192.0.2.1", same: "alice:192.0.2.9"},
		{template: header + "/end", text: "a/b/end", same: "a/b/end"},
		{template: "one", text: "one", same: "one"},
		{template: "one", text: "two", err: `"two" is no key of this zone, whose keys read one`},
		{template: "user " + header, text: "alice", err: "whose keys read user {http.request.header.X}"},
		{template: header + ":{client_ip}", text: "alice", err: "is no key of this zone"},
		{template: header + ":{client_ip}", text: "a:2001:db8::1", err: "several ways"},
		{template: header + "{client_ip}", text: "alice192.0.2.1", err: "several ways"},
		{template: "{client_ip}", text: "client_ip:nobody", err: "is no address"},
	} {
		k := mustKey(t, test.template, 24, 64)
		key, err := k.Parse(test.text)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: Parse(%q) = %q, %v, want %s", test.template, test.text, key, err, test.err)
			}
			continue
		}
		same, err2 := k.Parse(test.same)
		if err != nil || err2 != nil || string(key) != string(same) {
			t.Errorf("%s: Parse(%q) = %q, %v; Parse(%q) = %q, %v", test.template, test.text, key, err, test.same, same, err2)
		}
	}
}

// What no client has as a key is an error where keys are addresses, and may be a key else.
func TestCheckAddress(t *testing.T) {
	for _, test := range []struct{ template, text, err string }{
		{"{client_ip}", "203.0.113.9", ""},
		{"{client_ip}", "203.0.113.0/24", ""},
		{"{client_ip}", "2001:db8::1", ""},
		{"{client_ip}", "2001:db8::/64", ""},
		{"{client_ip}", "client_ip:203.0.113.9", ""},
		{"{client_ip}", "@", ""},
		{"{client_ip}", "", ""},
		{"{client_ip}", "203.0.113.300", `"203.0.113.300" is no address; write one`},
		{"{client_ip}", "192.0.0.0/16", ""},
		{"{client_ip}", "2001:db8::/24", ""},
		{"{client_ip}", "::ffff:192.0.0.0/112", ""},
		{"{client_ip}", "192.0.0.0/25", "counts by /24, and IPv6 by /64"},
		{"{client_ip}", "192.0.0.0/64", "counts by /24, and IPv6 by /64"},
		{"{client_ip}", "alice", "is no address"},
		{"{http.request.header.X-Api-Key}", "alice", ""},
		{"{http.request.header.X-Api-Key} {client_ip}", "alice bob", ""},
	} {
		if _, err := mustKey(t, test.template, 24, 64).CheckAddress(test.text); err == nil != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s, %q: %v, want %q", test.template, test.text, err, test.err)
		}
	}
}
