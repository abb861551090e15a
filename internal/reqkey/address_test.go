package reqkey

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// The short way to an IPv4 address reads the same as the standard library's.
func FuzzParseIPv4(f *testing.F) {
	for _, s := range []string{
		"192.0.2.1", "0.0.0.0", "255.255.255.255", "256.0.0.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.00", "1..2.3", ".1.2.3", "1.2.3.", "1.2.3.4 ",
		"1.2.3.4%eth0", "+1.2.3.4", "::ffff:1.2.3.4", "1234567", "1.2.3.0x4", "0.0.0.0000000",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want, err := netip.ParseAddr(s)
		valid := err == nil && want.Is4()
		if got, ok := parseIPv4(s); ok != valid || ok && [4]byte(binary.BigEndian.AppendUint32(nil, got)) != want.As4() {
			t.Errorf("parseIPv4(%q) = %#x, %v, want %v, %v", s, got, ok, want, valid)
		}
	})
}
