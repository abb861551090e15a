package reqkey

import (
	"encoding/binary"
	"net/netip"
	"strconv"
)

// MaxText is how many bytes of what a client sent a log line shows. An ellipsis follows where there
// are more.
const MaxText = 128

// Text shows a key that this template made, for a log: as the template reads with its values filled
// in, as Printable.
func (t *Template) Text(key []byte) string {
	if len(key) > 0 && key[0] == tagEarly {
		key = key[1:]
	}
	var raw []byte
	if len(key) > 0 && key[0] == tagClientIP {
		raw, _ = t.appendValueText(nil, key[1:])
		return "client_ip:" + Printable(string(raw))
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
