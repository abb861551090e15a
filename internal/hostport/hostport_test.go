package hostport

import (
	"net"
	"testing"
)

func FuzzHost(f *testing.F) {
	for _, s := range []string{
		"", ":", ":80", "example.com", "example.com:80", "192.0.2.1:49152", "::1", "[::1]", "[::1]:80", "[::1%eth0]:80", "2001:db8::1", "[a]:b:c", "[a", "a]:80", "@",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want := s
		if host, _, err := net.SplitHostPort(s); err == nil {
			want = host
		}
		if got := Host(s); got != want {
			t.Errorf("Host(%q) = %q, want %q", s, got, want)
		}
	})
}
