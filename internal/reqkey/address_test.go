package reqkey

import (
	"bytes"
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

// A key holds the network of an address in as few bytes as it needs, for each length of a prefix.
func TestNetworksInKeys(t *testing.T) {
	for _, address := range []string{"255.255.255.255", "0.0.0.0", "1.2.3.4", "170.85.204.51", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"} {
		addr, tag := netip.MustParseAddr(address), byte(tagIPv4)
		if addr.Is6() {
			tag = tagIPv6
		}
		for bits := 1; bits <= addr.BitLen(); bits++ {
			network, err := addr.Prefix(bits)
			if err != nil {
				t.Fatal(err)
			}
			want := append([]byte{tag}, network.Addr().AsSlice()[:(bits+7)/8]...)
			k := mustKey(t, Default, min(bits, 32), bits)
			if got := k.appendValue([]byte("before"), address); !bytes.Equal(got, append([]byte("before"), want...)) {
				t.Errorf("%s: %x, want %x", network, got, want)
			}
			if got := k.appendIP(nil, addr); !bytes.Equal(got, want) {
				t.Errorf("%s in place of an empty key: %x, want %x", network, got, want)
			}
		}
	}
}
