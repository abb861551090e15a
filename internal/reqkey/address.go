package reqkey

import (
	"encoding/binary"
	"net/http"
	"net/netip"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/hostport"
)

// IsEarly reports whether a request came in early data (0-RTT), whose sender can be forged: QUIC
// proves an address by the handshake.
func IsEarly(r *http.Request) bool { return r.TLS != nil && !r.TLS.HandshakeComplete }

// isProven reports whether a placeholder can't go by an address that early data may have forged:
// what the server itself had before any handler ran. All others may: a handler before, such as map,
// rewrite or request_header, or a module that knows where addresses are, can make a variable, a
// path, a header or the host of one.
func isProven(placeholder string) bool {
	return strings.HasPrefix(placeholder, requestPrefix+"tls.") || strings.HasPrefix(placeholder, requestPrefix+"orig_")
}

// ClientIP returns the client's address as the server found it, or else the peer's, "" for neither.
func ClientIP(r *http.Request) string {
	return clientOrRemote(r, toText(caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey)))
}

// clientOrRemote returns the client IP that the server found, or the peer's address where there was
// no server to ask. A peer without an address (a Unix socket) has none.
func clientOrRemote(r *http.Request, client string) string {
	if client != "" {
		return client
	}
	host := RemoteHost(r)
	if _, ok := parseIP(host); !ok {
		return ""
	}
	return host
}

// RemoteHost returns the address of the peer without its port.
func RemoteHost(r *http.Request) string { return hostport.Host(r.RemoteAddr) }

// appendValue appends a value with its tag: the network of an address, or any other text.
func (t *Template) appendValue(dst []byte, value string) []byte {
	if v4, ok := parseIPv4(value); ok {
		return t.appendIPv4(dst, v4)
	}
	if addr, ok := parseIP(value); ok {
		return t.appendIP(dst, addr)
	}
	dst = append(dst, tagText)
	dst = binary.AppendUvarint(dst, uint64(len(value)))
	return append(dst, value...)
}

// appendIP appends the network of an address that parseIP returned.
func (t *Template) appendIP(dst []byte, addr netip.Addr) []byte {
	if addr.Is4() {
		raw := addr.As4()
		return t.appendIPv4(dst, binary.BigEndian.Uint32(raw[:]))
	}
	raw := addr.As16()
	full, part := t.v6bits/8, t.v6bits%8
	dst = append(append(dst, tagIPv6), raw[:full]...)
	if part > 0 {
		dst = append(dst, raw[full]&^(0xff>>part))
	}
	return dst
}

// appendIPv4 appends the network of an address, in as few bytes as it needs.
func (t *Template) appendIPv4(dst []byte, addr uint32) []byte {
	addr &= t.v4mask
	dst = append(dst, tagIPv4, byte(addr>>24), byte(addr>>16), byte(addr>>8), byte(addr))
	return dst[:len(dst)-4+t.v4bytes]
}

// parseIP returns the address that s is, with its zone stripped and out of an IPv4-mapped form:
// ::ffff:192.0.2.1 is 192.0.2.1, or else all IPv4 clients are one IPv6 network (CVE-2026-30827). So
// they are in 64:ff9b::/96, which NAT64 puts before them (RFC 6052).
func parseIP(s string) (netip.Addr, bool) {
	if v4, ok := parseIPv4(s); ok {
		var raw [4]byte
		binary.BigEndian.PutUint32(raw[:], v4)
		return netip.AddrFrom4(raw), true
	}
	if i := strings.IndexByte(s, '%'); i >= 0 {
		s = s[:i]
	}
	if !looksLikeIP(s) {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, false
	}
	if nat64.Contains(addr) {
		raw := addr.As16()
		return netip.AddrFrom4([4]byte(raw[12:])), true
	}
	return addr.Unmap(), true
}

var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// parseIPv4 reads four numbers with dots between them as netip.ParseAddr does, in half the time:
// most client IPs are written so.
func parseIPv4(s string) (addr uint32, ok bool) {
	i := 0
	for octet := 1; i < len(s); octet++ {
		n := uint32(s[i] - '0')
		if n > 9 {
			break
		}
		for i++; n > 0 && i < len(s); i++ { // nothing follows a zero
			digit := uint32(s[i] - '0')
			if digit > 9 {
				break
			}
			if n = n*10 + digit; n > 255 {
				return 0, false
			}
		}
		if addr = addr<<8 | n; octet == 4 {
			return addr, i == len(s)
		}
		if i == len(s) || s[i] != '.' {
			break
		}
		i++
	}
	return 0, false
}

// looksLikeIP reports whether netip.ParseAddr is worth asking: for other text it allocates an
// error.
func looksLikeIP(s string) bool {
	const longest = len("0000:0000:0000:0000:0000:ffff:255.255.255.255")
	if len(s) < len("::") || len(s) > longest {
		return false
	}
	dots, colons := 0, 0
	for i := range len(s) {
		switch c := s[i]; {
		case c == '.':
			dots++
		case c == ':':
			colons++
		case c >= '0' && c <= '9', c >= 'a' && c <= 'f', c >= 'A' && c <= 'F':
		default:
			return false
		}
	}
	return dots == 3 || colons >= 2
}
