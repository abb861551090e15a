package reqkey

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// MaxText is how many bytes of what a client sent a log line shows. An ellipsis follows where there
// are more.
const MaxText = 128

// standInText precedes the text of a client IP in place of an empty key.
const standInText = "client_ip:"

// StandIn is the text of the key of an address that stands in for an empty key.
func StandIn(address string) string { return standInText + address }

// IsStandIn reports whether a key is one of these.
func IsStandIn(key []byte) bool { return len(key) > 0 && key[0] == tagClientIP }

// Text shows a key that this template made, for a log: as the template reads with its values filled
// in, as Printable.
func (t *Template) Text(key []byte) string {
	if IsAmbiguous(key) {
		return ambiguousText
	}
	var raw []byte
	if IsStandIn(key) {
		raw, _ = t.appendValueText(nil, key[1:])
		return standInText + Printable(string(raw))
	}
	for i := range t.parts {
		if len(raw) > MaxText {
			break
		}
		if t.parts[i].literal {
			raw = append(raw, t.parts[i].text...)
			continue
		}
		raw, key = t.appendValueText(raw, key)
	}
	return Printable(string(raw))
}

var (
	errAmbiguous = errors.New("this key can be read in several ways, as its values hold what stands between them; give the id in its place, as redis has it")
	// proven is a request that leaves values as they are.
	proven = &http.Request{TLS: &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: make([]*x509.Certificate, 1)}}
)

// Parse returns the key of which Text shows this, for whoever names a key by hand: a network may be
// given as any address in it.
func (t *Template) Parse(text string) ([]byte, error) {
	if ip, ok := strings.CutPrefix(text, standInText); ok && !t.shared {
		addr, ok := parseIP(t.withoutBits(ip))
		if !ok {
			return nil, fmt.Errorf("%q is no address", Printable(ip))
		}
		return t.appendIP([]byte{tagClientIP}, addr), nil
	}
	if text == ambiguousText && t.canBeAmbiguous() {
		return []byte{tagAmbiguous}, nil
	}
	key, rest := []byte(nil), text
	for i := range t.parts {
		p := &t.parts[i]
		if p.literal {
			after, ok := strings.CutPrefix(rest, p.text)
			if !ok {
				return nil, fmt.Errorf("%q is no key of this zone, whose keys read %s", Printable(text), t.pattern())
			}
			rest = after
			continue
		}
		value, after, err := t.valueBefore(rest, t.parts[i+1:])
		if err != nil {
			return nil, err
		}
		if rest = after; p.form != nil && value != "" {
			value = p.form(proven, value)
		}
		key = t.appendValue(key, t.withoutBits(value))
	}
	switch {
	case rest != "":
		return nil, fmt.Errorf("%q is no key of this zone, whose keys read %s", Printable(text), t.pattern())
	case t.shared:
		return []byte{tagShared}, nil
	}
	return key, nil
}

// IsEmpty reports whether nothing in a key that Parse made tells clients apart.
func (t *Template) IsEmpty(key []byte) bool {
	if t.shared || IsAmbiguous(key) || IsStandIn(key) {
		return false
	}
	var value []byte
	for i := range t.parts {
		if p := &t.parts[i]; !p.literal {
			if value, key = t.appendValueText(value[:0], key); p.tells && len(value) > 0 {
				return false
			}
		}
	}
	return true
}

// CheckAddress returns the range that a text is, or reports one that no client has, where keys are
// addresses and no more: one that is mistyped, or a range within the network of a key. Clients
// behind a Unix socket have "@".
func (t *Template) CheckAddress(text string) (within netip.Prefix, err error) {
	if len(t.parts) != 1 || t.parts[0].text != clientIPName || text == "" || text == "@" || strings.HasPrefix(text, standInText) {
		return within, nil
	}
	bits := t.v6bits
	if within, err = netip.ParsePrefix(text); within.Addr().Is4In6() && within.Bits() >= 96 {
		within = netip.PrefixFrom(within.Addr().Unmap(), within.Bits()-96)
	}
	if within.Addr().Is4() {
		bits = t.v4bits
	}
	if err == nil && within.Bits() < bits {
		return within.Masked(), nil
	}
	if _, isIP := parseIP(t.withoutBits(text)); !isIP {
		return netip.Prefix{}, fmt.Errorf("key: %q is no address; write one, like 203.0.113.9, or a range: this zone counts by /%d, and IPv6 by /%d", Printable(text), t.v4bits, t.v6bits)
	}
	return netip.Prefix{}, nil
}

// AddressOf returns the address that a key is, or the first one of its network. It is invalid where
// the key holds more or less than that.
func AddressOf(key []byte) (addr netip.Addr) {
	var raw [17]byte
	switch n := copy(raw[:], key); {
	case raw[0] == tagIPv4 && n <= 5:
		return netip.AddrFrom4([4]byte(raw[1:]))
	case raw[0] == tagIPv6 && n == len(key):
		return netip.AddrFrom16([16]byte(raw[1:]))
	}
	return addr
}

// valueBefore cuts off a value: all there is, or what stands before the literal that follows.
func (t *Template) valueBefore(text string, following []part) (value, rest string, err error) {
	if len(following) == 0 {
		return text, "", nil
	}
	next := following[0]
	if !next.literal {
		return "", "", errAmbiguous
	}
	if len(following) == 1 {
		if value, ok := strings.CutSuffix(text, next.text); ok {
			return value, next.text, nil
		}
	}
	switch strings.Count(text, next.text) {
	case 0:
		return text, "", nil // the literal is missed then
	case 1:
		i := strings.Index(text, next.text)
		return text[:i], text[i:], nil
	}
	return "", "", errAmbiguous
}

// withoutBits leaves the bits out that Text shows behind a network.
func (t *Template) withoutBits(value string) string {
	for _, bits := range []int{t.v4bits, t.v6bits} {
		ip, ok := strings.CutSuffix(value, "/"+strconv.Itoa(bits))
		if addr, isIP := parseIP(ip); ok && isIP && (addr.Is4() && bits == t.v4bits || addr.Is6() && bits == t.v6bits) {
			return ip
		}
	}
	return value
}

// pattern is the template as people write it.
func (t *Template) pattern() string {
	var b strings.Builder
	for _, p := range t.parts {
		if p.literal {
			b.WriteString(p.text)
		} else {
			b.WriteString("{" + strings.TrimPrefix(p.text, varsPrefix) + "}")
		}
	}
	return b.String()
}

// appendValueText appends the first value of a key as text, and returns what follows in the key.
// What no template makes has no text and nothing that follows.
func (t *Template) appendValueText(dst, key []byte) (text, rest []byte) {
	if len(key) == 0 {
		return dst, nil
	}
	tag, rest := key[0], key[1:]
	if tag == tagText {
		n, width := binary.Uvarint(rest)
		if width <= 0 || n > uint64(len(rest)-width) {
			return dst, nil
		}
		value := rest[width : width+int(n)]
		return append(dst, value[:min(len(value), MaxText+1)]...), rest[width+int(n):]
	}
	bits, raw := 0, []byte(nil)
	switch tag {
	case tagIPv4:
		bits, raw = t.v4bits, make([]byte, 4)
	case tagIPv6:
		bits, raw = t.v6bits, make([]byte, 16)
	}
	size := (bits + 7) / 8
	if raw == nil || len(rest) < size {
		return dst, nil
	}
	copy(raw, rest[:size])
	addr, _ := netip.AddrFromSlice(raw)
	dst = addr.AppendTo(dst)
	if bits < addr.BitLen() {
		dst = append(append(dst, '/'), strconv.Itoa(bits)...)
	}
	return dst, rest[size:]
}

// Printable makes printable ASCII of what a client sent, MaxText bytes and an ellipsis at most.
// Control characters could drive a terminal, and other scripts could pass for something else.
func Printable(s string) string {
	quoted := strconv.QuoteToASCII(s[:min(len(s), MaxText)])
	quoted = quoted[1 : len(quoted)-1]
	if len(s) > MaxText || len(quoted) > MaxText {
		quoted = quoted[:min(len(quoted), MaxText)] + "..."
	}
	return quoted
}
