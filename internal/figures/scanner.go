package figures

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// A Scanner reads one body, and keeps the greatest number of each line of its Paths. It is not safe
// for concurrent use.
//
// Numbers count as soon as they have passed, also of a value that is cut off later. What has an
// error is skipped up to the end of its value, which in JSON is that of the body.
type Scanner struct {
	paths  *Paths
	format Format
	found  []float64 // -1 for none
	framing

	state state
	// path leads to the value that comes next, or is read, as in Paths. It is cut off where it is
	// longer than all of those.
	path []byte
	// open are the containers that are open, the innermost one last.
	open []container
	// escape is what is to come of an escape: afterBackslash, or that many digits.
	escape int
	// number is what has passed of a number, and word what is to come of true, false or null.
	number []byte
	word   string

	// Done is set at the end of a body: in JSON that of an object or array that nothing but white
	// space has followed, of events [DONE], or one of lastEvents.
	Done bool
	// Bad is set where the body has errors, or something else than numbers and null where the paths
	// lead to; TooDeep as well where a value was not read to its end, as more than 512 containers
	// in it were open at once. What was not read may be greater than what was.
	Bad, TooDeep bool
}

const (
	// maxDepth is how deep the containers of a value may be nested.
	maxDepth = 512
	// maxNumber is how long a number may be. One that is longer is an error.
	maxNumber = 256
	// afterBackslash is more than the digits of an escape.
	afterBackslash = 5
)

// A container is an object or an array: the byte that closes it, and how long the path to it is.
type container struct {
	closing byte
	path    int
}

// A state is what a Scanner expects next.
type state uint8

const (
	inValue   state = iota // a value
	inElement              // a value, or the end of an array
	inMember               // a key, or the end of an object
	inKey                  // a key
	inColon                // what follows a key
	inMore                 // a comma, or the end of the container
	inText                 // the rest of a string
	inKeyText              // the rest of a key
	inNumber               // the rest of a number
	inWord                 // the rest of a word
	inError                // the end of a value that has an error
)

// Scanner returns one for a body that has a format.
func (p *Paths) Scanner(f Format) *Scanner {
	return &Scanner{paths: p, format: f, found: slices.Repeat([]float64{-1}, p.count), path: make([]byte, 0, p.longest+1)}
}

// Number returns the greatest number that the paths of a line have led to so far. ok is false where
// there was none: null is none, nor is what is negative.
func (s *Scanner) Number(line int) (n float64, ok bool) {
	return max(s.found[line], 0), s.found[line] >= 0
}

// Write reads the next piece of the body. It never fails.
func (s *Scanner) Write(b []byte) (int, error) {
	n := len(b)
	if s.marked < len(byteOrderMark) {
		b = s.unmarked(b)
	}
	switch s.format {
	case JSON:
		s.scan(b)
	case Lines:
		s.lines(b)
	case Events:
		s.events(b)
	}
	return n, nil
}

// scan reads a piece of a value, or of several.
func (s *Scanner) scan(b []byte) {
	for i := 0; i < len(b); {
		switch s.state {
		case inText, inKeyText:
			i += s.scanText(b[i:])
		case inNumber:
			i += s.scanNumber(b[i:])
		case inWord:
			s.scanWord(b[i])
			i++
		case inError:
			return
		default:
			s.scanStructure(b[i])
			i++
		}
	}
}

// end ends a value, or what is skipped of one.
func (s *Scanner) end() {
	s.state, s.path, s.open, s.escape = inValue, s.path[:0], s.open[:0], 0
}

// fail has the rest of a value skipped.
func (s *Scanner) fail() {
	s.state, s.Bad = inError, true
	s.Done = s.Done && s.format != JSON
}

// scanStructure reads a byte between values, or the first one of a value.
func (s *Scanner) scanStructure(c byte) {
	isValue := s.state == inValue || s.state == inElement
	switch {
	case c == ' ' || c == '\t' || c == '\n' || c == '\r':
	case c == '"' && isValue:
		s.state = inText
	case c == '"' && (s.state == inKey || s.state == inMember):
		s.state = inKeyText
		s.lengthen([]byte{'"'})
	case c == ':' && s.state == inColon:
		s.state = inValue
	case c == ',' && s.state == inMore:
		s.state = inValue
		if s.open[len(s.open)-1].closing == '}' {
			s.state = inKey
		}
	case c == '{' && isValue:
		s.push('}', inMember)
	case c == '[' && isValue:
		s.push(']', inElement)
	case c == '}' && s.state == inMember || c == ']' && s.state == inElement:
		s.pop()
	case s.state == inMore && c == s.open[len(s.open)-1].closing:
		s.pop()
	case isValue && (c == '-' || isDigit(c)):
		s.state, s.number = inNumber, append(s.number[:0], c)
	case isValue && words[c] != "":
		s.state, s.word = inWord, words[c]
	default:
		s.fail()
	}
}

// push opens a container.
func (s *Scanner) push(closing byte, next state) {
	s.Done = s.Done && s.format != JSON
	if len(s.open) == maxDepth {
		s.TooDeep = true
		s.fail()
		return
	}
	s.open = append(s.open, container{closing, len(s.path)})
	s.state = next
}

// pop closes a container.
func (s *Scanner) pop() {
	s.open = s.open[:len(s.open)-1]
	s.endValue()
	s.Done = s.Done || s.format == JSON && len(s.open) == 0
}

// endValue notes that a value is complete.
func (s *Scanner) endValue() {
	if len(s.open) == 0 {
		s.end()
		return
	}
	s.state, s.path = inMore, s.path[:s.open[len(s.open)-1].path]
}

// lengthen adds to the path, as far as it may be one of Paths.
func (s *Scanner) lengthen(b []byte) {
	s.path = append(s.path, b[:min(len(b), cap(s.path)-len(s.path))]...)
}

// isOther notes that a value is neither a number nor null.
func (s *Scanner) isOther() { s.Bad = s.Bad || len(s.paths.lines[string(s.path)]) > 0 }

// scanText reads the rest of a string, and returns how long that is.
func (s *Scanner) scanText(b []byte) int {
	end := 0
	for ; end < len(b) && (b[end] != '"' || s.escape == afterBackslash); end++ {
		switch c := b[end]; {
		case s.escape == 0 && c == '\\':
			s.escape = afterBackslash
		case s.escape == 0 && c >= ' ':
		case s.escape == afterBackslash && c == 'u':
			s.escape = 4
		case s.escape == afterBackslash && strings.IndexByte(`"\/bfnrt`, c) >= 0:
			s.escape = 0
		case s.escape > 0 && s.escape < afterBackslash && isHex(c):
			s.escape--
		default:
			s.fail()
			return end
		}
	}
	if s.state == inKeyText {
		s.lengthen(b[:end])
	}
	if end == len(b) {
		return end
	}
	switch {
	case s.escape > 0:
		s.fail()
	case s.state == inKeyText:
		s.state = inColon
	default:
		s.isOther()
		s.endValue()
	}
	return end + 1
}

// words are those of JSON without their first letter.
var words = map[byte]string{'t': "rue", 'f': "alse", 'n': "ull"}

// scanWord reads a byte of a word.
func (s *Scanner) scanWord(c byte) {
	if c != s.word[0] {
		s.fail()
		return
	}
	if s.word = s.word[1:]; s.word == "" {
		if c == 'e' { // null says that there is no number
			s.isOther()
		}
		s.endValue()
	}
}

// scanNumber reads the rest of a number up to what ends it, and returns how long that is.
func (s *Scanner) scanNumber(b []byte) int {
	for i, c := range b {
		switch {
		case strings.IndexByte(" \t\r\n,]}", c) >= 0:
			s.endNumber()
			return i
		case len(s.number) == maxNumber || !mayFollow(s.number, c):
			s.fail()
			return i
		}
		s.number = append(s.number, c)
	}
	return len(b)
}

// mayFollow reports whether a byte can follow the first ones of a number.
func mayFollow(number []byte, c byte) bool {
	last := number[len(number)-1]
	switch {
	case isDigit(c):
		return string(number) != "0" && string(number) != "-0"
	case c == '-' || c == '+':
		return last|0x20 == 'e'
	case c == '.':
		return isDigit(last) && !bytes.ContainsAny(number, ".eE")
	}
	return c|0x20 == 'e' && isDigit(last) && !bytes.ContainsAny(number, "eE")
}

// endNumber ends a number.
func (s *Scanner) endNumber() {
	switch lines := s.paths.lines[string(s.path)]; {
	case !isDigit(s.number[len(s.number)-1]):
		s.fail()
		return
	case len(lines) > 0 && s.number[0] == '-':
		s.Bad = true
	case len(lines) > 0:
		n, _ := strconv.ParseFloat(string(s.number), 64) // out of range is 0 or infinite
		for _, line := range lines {
			s.found[line] = max(s.found[line], n)
		}
	}
	s.endValue()
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isHex(c byte) bool { return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }
