package statuspage

import "testing"

// A unix socket has no address, and is where this machine is. No network is but those that are
// written.
func TestWithin(t *testing.T) {
	for _, test := range []struct {
		allow   []string
		address string
		want    bool
	}{
		{nil, "", true}, {nil, "@", true}, {nil, "/run/caddy.sock", true}, {nil, "127.0.0.9:1", true}, {nil, "[::1]:1", true}, {nil, "::ffff:127.0.0.1", true},
		{nil, "192.0.2.7:1", false}, {nil, "unknown", false},
		{[]string{"192.0.2.0/24"}, "192.0.2.7:1", true}, {[]string{"192.0.2.0/24"}, "@", false}, {[]string{"192.0.2.0/24"}, "127.0.0.1:1", false},
		{[]string{"127.0.0.1"}, "@", true}, {[]string{"::1"}, "@", true}, {[]string{"::1"}, "127.0.0.1:1", false},
		{[]string{"private"}, "@", true}, {[]string{"private"}, "[fe80::1%eth0]:1", true}, {[]string{"private"}, "127.0.0.1:1", true},
		{[]string{"all"}, "@", true}, {[]string{"all"}, "[2001:db8::1]:1", true},
	} {
		ranges, err := parseRanges(test.allow)
		if err != nil {
			t.Fatal(err)
		}
		if got := within(ranges, test.address); got != test.want {
			t.Errorf("allow %v: within(%q) = %t, want %t", test.allow, test.address, got, test.want)
		}
	}
}
