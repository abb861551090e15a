package figures

// A Scanner reads one body, and keeps the greatest number of each line of its Paths. It is not safe
// for concurrent use.
//
// Numbers count as soon as they have passed, also of a value that is cut off later. What has an
// error is skipped up to the end of its value, which in JSON is that of the body.
type Scanner struct {
	paths  *Paths
	format Format
	found  []figure
	framing

	state state
	// at is the node of the value that comes next, or is read.
	at uint16
	// stack has the node of each container that is open, and its lowest bit is set for objects.
	stack [maxDepth]uint16
	depth int
	text  text
	word  string // what is left of true, false or null
	num   number

	// Done is set at the end of a body: in JSON that of an object or array that nothing but white
	// space has followed, of events [DONE], or one of lastEvents.
	Done bool
	// Bad is set where the body has errors, or something else than numbers and null where the paths
	// lead to; TooDeep as well where a value was not read to its end, as more than 512 containers
	// in it were open at once. What was not read may be greater than what was.
	Bad, TooDeep bool
}

// maxDepth is how deep the containers of a value may be nested.
const maxDepth = 512

type figure struct {
	greatest float64
	ok       bool
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
	inWord                 // the rest of a word
	inNumber               // the rest of a number
	inError                // the end of a value that has an error
)

// Scanner returns one for a body that has a format.
func (p *Paths) Scanner(f Format) *Scanner {
	s := &Scanner{paths: p, format: f, found: make([]figure, p.lines), at: top}
	s.text.held = make([]byte, 0, p.longest+1)
	return s
}

// Number returns the greatest number that the paths of a line have led to so far. ok is false where
// there was none: null is none, nor is what is negative.
func (s *Scanner) Number(line int) (n float64, ok bool) {
	return s.found[line].greatest, s.found[line].ok
}

// Write reads the next piece of the body. It never fails.
func (s *Scanner) Write(b []byte) (int, error) {
	switch s.format {
	case JSON:
		s.scan(b)
	case Lines:
		s.lines(b)
	case Events:
		s.events(b)
	}
	return len(b), nil
}

// scan reads a piece of a value, or of several.
func (s *Scanner) scan(b []byte) {
	for i := 0; i < len(b); {
		switch s.state {
		case inText, inKeyText:
			i = s.scanText(b, i)
		case inNumber:
			i = s.scanNumber(b, i)
		case inWord:
			i = s.scanWord(b, i)
		case inError:
			return
		default:
			i = s.scanStructure(b, i)
		}
	}
}

// end ends a value, or what is skipped of one.
func (s *Scanner) end() {
	s.state, s.at, s.depth = inValue, top, 0
	s.text.escaped, s.text.hex = false, 0
}

// fail has the rest of a value skipped.
func (s *Scanner) fail() {
	s.state, s.Bad = inError, true
	s.Done = s.Done && s.format != JSON
}

// scanStructure reads up to where a string, a number or a word goes on: what is in one piece it
// reads itself.
func (s *Scanner) scanStructure(b []byte, i int) int {
	for i < len(b) {
		c := b[i]
		i++
		switch c {
		case ' ', '\t', '\n', '\r':
		case '"':
			if i = s.open(b, i); s.state >= inText {
				return i
			}
		case ':':
			if s.state != inColon {
				s.fail()
				return i
			}
			s.state = inValue
		case ',':
			if s.state != inMore {
				s.fail()
				return i
			}
			if in := s.stack[s.depth-1]; in&1 == 1 {
				s.state = inKey
			} else {
				s.state, s.at = inValue, in>>1
			}
		case '{', '[':
			if s.push(c); s.state == inError {
				return i
			}
		case '}', ']':
			if s.pop(c); s.state == inError {
				return i
			}
		default:
			return s.begin(b, i-1)
		}
	}
	return i
}

// push opens a container.
func (s *Scanner) push(c byte) {
	s.Done = s.Done && s.format != JSON
	switch {
	case s.state > inElement:
		s.fail()
	case s.depth == maxDepth:
		s.TooDeep = true
		s.fail()
	case c == '{':
		s.stack[s.depth], s.state = s.at<<1|1, inMember
		s.depth++
	default:
		s.stack[s.depth], s.state = s.at<<1, inElement
		s.depth++
	}
}

// pop closes a container.
func (s *Scanner) pop(c byte) {
	empty, kind := inMember, uint16(1)
	if c == ']' {
		empty, kind = inElement, 0
	}
	if s.state != empty && (s.state != inMore || s.stack[s.depth-1]&1 != kind) {
		s.fail()
		return
	}
	s.depth--
	s.endValue()
	s.Done = s.Done || s.format == JSON && s.depth == 0
}

// endValue notes that a value is complete.
func (s *Scanner) endValue() {
	if s.state = inMore; s.depth == 0 {
		s.state, s.at = inValue, top
	}
}

// begin begins a number or a word.
func (s *Scanner) begin(b []byte, i int) int {
	c := b[i]
	switch {
	case s.state > inElement:
		s.fail()
		return i
	case c == '-' || isDigit(c):
		s.state = inNumber
		s.num.reset()
		return s.scanNumber(b, i)
	case c == 't':
		s.word = "true"
	case c == 'f':
		s.word = "false"
	case c == 'n':
		s.word = "null"
	default:
		s.fail()
		return i
	}
	s.state = inWord
	return s.scanWord(b, i)
}

// isOther notes that a value is no number.
func (s *Scanner) isOther() {
	if len(s.paths.nodes[s.at].lines) > 0 {
		s.Bad = true
	}
}

// scanWord reads the rest of a word.
func (s *Scanner) scanWord(b []byte, i int) int {
	n := min(len(s.word), len(b)-i)
	if string(b[i:i+n]) != s.word[:n] {
		s.fail()
		return i
	}
	if s.word = s.word[n:]; s.word == "" {
		if b[i+n-1] != 'l' { // null says that there is no number
			s.isOther()
		}
		s.endValue()
	}
	return i + n
}

// add notes a number that has passed.
func (s *Scanner) add(n float64) {
	for _, line := range s.paths.nodes[s.at].lines {
		f := &s.found[line]
		f.greatest, f.ok = max(f.greatest, n), true
	}
}
