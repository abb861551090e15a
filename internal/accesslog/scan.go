package accesslog

import (
	"encoding/binary"
	"encoding/json"
	"unicode/utf8"
)

// A scanner goes through one JSON text. It accepts what encoding/json accepts, and is several times
// as fast, as it makes no values.
type scanner struct {
	b []byte
	i int
}

// maxDepth is how deep values may be nested.
const maxDepth = 100

func (s *scanner) space() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\t' || s.b[s.i] == '\n' || s.b[s.i] == '\r') {
		s.i++
	}
}

// next skips spaces and one byte, if it is c.
func (s *scanner) next(c byte) bool {
	s.space()
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

// text reads a string and returns it with its quotes.
func (s *scanner) text() (quoted []byte, ok bool) {
	if !s.next('"') {
		return nil, false
	}
	start := s.i - 1
	for {
		s.plain()
		if s.i == len(s.b) {
			return nil, false
		}
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return s.b[start:s.i], true
		case c == '\\':
			if !s.escape() {
				return nil, false
			}
		default: // a control character
			return nil, false
		}
	}
}

// plain skips what stands for itself in a string: eight bytes at a time, as most of a log is that.
func (s *scanner) plain() {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	for ; s.i+8 <= len(s.b); s.i += 8 {
		w := binary.LittleEndian.Uint64(s.b[s.i:])
		quote, slash := w^ones*'"', w^ones*'\\'
		if ((quote-ones)&^quote|(slash-ones)&^slash|(w-ones*' ')&^w)&high != 0 {
			break // one of these eight does not
		}
	}
	for s.i < len(s.b) && s.b[s.i] != '"' && s.b[s.i] != '\\' && s.b[s.i] >= ' ' {
		s.i++
	}
}

// escape skips one escape sequence.
func (s *scanner) escape() bool {
	if s.i+1 >= len(s.b) {
		return false
	}
	switch s.b[s.i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.i += 2
		return true
	case 'u':
		for k := s.i + 2; k < s.i+6; k++ {
			if k >= len(s.b) || !isHex(s.b[k]) {
				return false
			}
		}
		s.i += 6
		return true
	}
	return false
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// value reads any value and returns its text.
func (s *scanner) value(depth int) (raw []byte, ok bool) {
	s.space()
	start := s.i
	if s.i >= len(s.b) || depth > maxDepth {
		return nil, false
	}
	switch c := s.b[s.i]; c {
	case '"':
		return s.text()
	case '{', '[':
		ok = s.members(c == '{', depth)
	case 't':
		ok = s.word("true")
	case 'f':
		ok = s.word("false")
	case 'n':
		ok = s.word("null")
	default:
		ok = s.number()
	}
	return s.b[start:s.i], ok
}

// members skips what is in an object or a list.
func (s *scanner) members(object bool, depth int) bool {
	closing := byte(']')
	if object {
		closing = '}'
	}
	s.i++
	if s.next(closing) {
		return true
	}
	for {
		if object {
			if _, ok := s.text(); !ok || !s.next(':') {
				return false
			}
		}
		if _, ok := s.value(depth + 1); !ok {
			return false
		}
		if s.next(closing) {
			return true
		}
		if !s.next(',') {
			return false
		}
	}
}

func (s *scanner) word(w string) bool {
	if len(s.b)-s.i < len(w) || string(s.b[s.i:s.i+len(w)]) != w {
		return false
	}
	s.i += len(w)
	return true
}

func (s *scanner) number() bool {
	if s.i < len(s.b) && s.b[s.i] == '-' {
		s.i++
	}
	switch {
	case s.i < len(s.b) && s.b[s.i] == '0':
		s.i++
	case !s.digits():
		return false
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !s.digits() {
			return false
		}
	}
	if s.i < len(s.b) && (s.b[s.i] == 'e' || s.b[s.i] == 'E') {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		return s.digits()
	}
	return true
}

// digits skips one digit or more.
func (s *scanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && isDigit(s.b[s.i]) {
		s.i++
	}
	return s.i > start
}

// inner returns what a quoted string stands for. It is part of the quoted one where that has no
// escapes.
func inner(quoted []byte) []byte {
	text := quoted[1 : len(quoted)-1]
	plain := true
	for _, c := range text {
		if c == '\\' || c >= utf8.RuneSelf {
			plain = false
			break
		}
	}
	if plain {
		return text
	}
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return nil
	}
	return []byte(s)
}
