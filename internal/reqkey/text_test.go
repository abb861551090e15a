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
		if got := k.Text([]byte(key)); got != test.want {
			t.Errorf("%s: text %q, want %q", test.template, got, test.want)
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
