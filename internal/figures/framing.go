package figures

import (
	"bytes"
	"slices"
	"strings"
)

// A framing is where a Scanner stands in the lines of its body.
type framing struct {
	// marked is how many bytes of a byte order mark were read, all of them where the body has none.
	marked int
	// head is the beginning of a line of events, as far as it tells the line from others.
	head []byte
	// inData is set where the rest of the line are data.
	inData bool
	// afterCR is set after a carriage return, whose line feed ends no other line.
	afterCR bool
	// data is how many lines of data the event has so far.
	data int
	// isLast is set for an event that is the last one of its stream.
	isLast bool
	// wasBad is whether there were errors before this event.
	wasBad bool
}

// maxHead is longer than a line with [DONE] or with the name of one of lastEvents.
const maxHead = 32

// byteOrderMark begins bodies of some servers, and means nothing.
const byteOrderMark = "\xef\xbb\xbf"

// lastEvents are the events that end a stream: of Anthropic's messages, and of OpenAI's responses.
var lastEvents = []string{"message_stop", "response.completed", "response.incomplete", "response.failed"}

// unmarked returns a piece of a body without what it has of a byte order mark. What begins like one
// and is none stays.
func (s *Scanner) unmarked(b []byte) []byte {
	for ; len(b) > 0 && s.marked < len(byteOrderMark); b = b[1:] {
		if b[0] != byteOrderMark[s.marked] {
			b = append([]byte(byteOrderMark[:s.marked]), b...)
			s.marked = len(byteOrderMark)
			return b
		}
		s.marked++
	}
	return b
}

// lines reads a piece of a body whose values end with their line.
func (s *Scanner) lines(b []byte) {
	for {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		s.scan(line)
		if !whole {
			return
		}
		s.end()
		b = rest
	}
}

// events reads a piece of a stream of events. A line ends with a carriage return, a line feed, or
// both.
//
// https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
func (s *Scanner) events(b []byte) {
	for len(b) > 0 {
		if s.afterCR && b[0] == '\n' {
			b = b[1:]
		}
		s.afterCR = false
		i := bytes.IndexAny(b, "\r\n")
		if i < 0 {
			s.part(b)
			return
		}
		s.part(b[:i])
		s.endLine()
		s.afterCR = b[i] == '\r'
		b = b[i+1:]
	}
}

// part reads a part of a line of events.
func (s *Scanner) part(b []byte) {
	n := min(len(b), maxHead-len(s.head))
	s.head = append(s.head, b[:n]...)
	if s.inData {
		s.scan(b)
		return
	}
	if data, ok := bytes.CutPrefix(s.head, []byte("data:")); ok && len(data) > 0 {
		s.beginData()
		s.scan(bytes.TrimPrefix(data, []byte{' '}))
		s.scan(b[n:])
	}
}

// beginData begins the data of a line. A line feed stands between those of two lines.
func (s *Scanner) beginData() {
	if s.data == 0 {
		s.wasBad = s.Bad
	} else {
		s.scan([]byte{'\n'})
	}
	s.inData = true
	s.data++
}

// endLine ends a line of events, and the event if the line is empty.
func (s *Scanner) endLine() {
	name, value, _ := strings.Cut(string(s.head), ":")
	value = strings.TrimPrefix(value, " ")
	switch {
	case len(s.head) == 0:
		s.end()
		s.Done = s.Done || s.isLast && s.data > 0
		s.data, s.isLast = 0, false
	case name == "event":
		s.isLast = slices.Contains(lastEvents, value)
	case name == "data" && !s.inData: // it has none
		s.beginData()
	case name == "data" && s.data == 1 && value == "[DONE]":
		s.Done, s.Bad = true, s.wasBad
	}
	s.head, s.inData = s.head[:0], false
}
