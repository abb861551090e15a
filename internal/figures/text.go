package figures

// A text is what is known of a string that goes on in the next piece.
type text struct {
	// held is what has passed of a key, as far as it may be one of the paths.
	held []byte
	// escaped is set after a backslash, and hex is how many digits of a \u are to come.
	escaped bool
	hex     int
}

// other is set for the bytes that don't stand for themselves in a string.
var other = [256]bool{'"': true, '\\': true}

func init() {
	for c := range ' ' {
		other[c] = true
	}
}

// plain returns the index of the first byte from i on that does not stand for itself in a string.
func plain(b []byte, i int) int {
	for i < len(b) && !other[b[i]] {
		i++
	}
	return i
}

// open reads a string from its first byte on, up to its end if that is in this piece.
func (s *Scanner) open(b []byte, start int) int {
	state := s.state
	if state > inKey {
		s.fail()
		return start
	}
	i := plain(b, start)
	isKey := state >= inMember
	if i < len(b) && b[i] == '"' {
		if !isKey {
			s.isOther()
			s.endValue()
		} else {
			s.endKey(b[start:i])
		}
		return i + 1
	}
	if s.state = inText; isKey {
		s.state = inKeyText
		s.text.held = s.text.held[:0]
		s.hold(b[start:i])
	}
	return i
}

// endKey notes a key, whose value comes next.
func (s *Scanner) endKey(key []byte) {
	if s.state, s.at = inColon, s.stack[s.depth-1]>>1; s.at != nowhere {
		s.at = s.paths.child(s.at, key)
	}
}

// hold keeps a part of a key, or as much of it as tells that it is too long for any path.
func (s *Scanner) hold(b []byte) {
	if s.state == inKeyText {
		s.text.held = append(s.text.held, b[:min(len(b), cap(s.text.held)-len(s.text.held))]...)
	}
}

// spoil has a key be none of the paths.
func (s *Scanner) spoil() { s.text.held = s.text.held[:cap(s.text.held)] }

// scanText reads the rest of a string.
func (s *Scanner) scanText(b []byte, i int) int {
	t := &s.text
	for i < len(b) {
		c := b[i]
		switch {
		case t.hex > 0:
			if !isHex(c) {
				return s.failText(i)
			}
			t.hex--
			i++
		case t.escaped:
			switch c {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				t.hex = 4
			default:
				return s.failText(i)
			}
			t.escaped = false
			i++
		case c == '\\':
			t.escaped = true
			s.spoil()
			i++
		case c == '"':
			if s.state == inText {
				s.isOther()
				s.endValue()
			} else {
				s.endKey(t.held)
			}
			return i + 1
		case c < ' ':
			return s.failText(i)
		default:
			end := plain(b, i)
			s.hold(b[i:end])
			i = end
		}
	}
	return i
}

func (s *Scanner) failText(i int) int {
	s.fail()
	return i
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isHex(c byte) bool { return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }
