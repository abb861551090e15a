package figures

import (
	"bytes"
	"slices"
	"strings"
)

// A framing is where a Scanner stands in the lines of its body.
type framing struct {
	field field
	// afterCR is set after a carriage return, whose line feed ends no other line.
	afterCR bool
	// hasData is set where the event has a line of data before this one.
	hasData bool
	// ends is how much of [DONE] the data of a line have been so far, -1 where they are other data.
	ends int
	// name is as much of the line of an event's name as tells it from all others, and isLast is set
	// for an event that is the last one of its stream.
	name    [maxName]byte
	nameLen int
	isLast  bool
	// wasBad is whether there were errors before this event.
	wasBad bool
}

// lastEvents are the events that end a stream: of Anthropic's messages, and of OpenAI's responses.
var lastEvents = []string{"message_stop", "response.completed", "response.incomplete", "response.failed"}

// maxName is longer than the line of each of them.
const maxName = 32

// A field is how much of the name of a field has passed in a line of events: below 5 it is as much
// of "data:".
type field int

const (
	blank   field = 5 + iota // the colon has passed, and one blank may follow
	content                  // the rest are data
	named                    // the line may have the event's name
	ignored                  // the rest are none
)

const (
	dataField  = "data:"
	eventField = "event:"
	doneData   = "[DONE]"
)

// lines reads a piece of a body whose values end with their line.
func (s *Scanner) lines(b []byte) {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			s.scan(b)
			return
		}
		s.scan(b[:i])
		s.end()
		b = b[i+1:]
	}
}

// events reads a piece of a stream of events. A line ends with a carriage return, a line feed, or
// both.
//
// https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
func (s *Scanner) events(b []byte) {
	for len(b) > 0 {
		if s.afterCR {
			if s.afterCR = false; b[0] == '\n' {
				b = b[1:]
				continue
			}
		}
		line, rest := b, b[len(b):]
		i := bytes.IndexByte(b, '\n')
		if i >= 0 {
			line, rest = b[:i], b[i+1:]
		}
		if cr := bytes.IndexByte(line, '\r'); cr >= 0 {
			line, rest, i = line[:cr], b[cr+1:], cr
			s.afterCR = true
		}
		s.part(line)
		if i >= 0 {
			s.endLine()
		}
		b = rest
	}
}

// part reads a part of a line of events.
func (s *Scanner) part(b []byte) {
	if s.field == 0 && len(b) > 0 && b[0] == eventField[0] {
		s.field, s.nameLen = named, 0
	}
	if s.field == named {
		s.nameLen += copy(s.name[s.nameLen:], b)
		return
	}
	for s.field < blank && len(b) > 0 {
		if b[0] != dataField[s.field] {
			s.field = ignored
			return
		}
		s.field++
		b = b[1:]
	}
	if len(b) == 0 || s.field == ignored {
		return
	}
	if s.field == blank {
		s.beginData()
		if b[0] == ' ' {
			b = b[1:]
		}
	}
	for i := 0; s.ends >= 0 && i < len(b); i++ {
		if s.ends < len(doneData) && b[i] == doneData[s.ends] {
			s.ends++
		} else {
			s.ends = -1
		}
	}
	s.scan(b)
}

// newLine stands between two lines of data.
var newLine = []byte{'\n'}

// beginData begins the data of a line.
func (s *Scanner) beginData() {
	if s.field, s.ends = content, -1; s.hasData {
		s.scan(newLine)
	} else {
		s.ends, s.wasBad = 0, s.Bad
	}
	s.hasData = true
}

// endLine ends a line of events, and the event if the line is empty.
func (s *Scanner) endLine() {
	switch {
	case s.field == 0:
		s.end()
		s.Done = s.Done || s.isLast && s.hasData
		s.hasData, s.ends, s.isLast = false, 0, false
	case s.field == named:
		name, ok := strings.CutPrefix(string(s.name[:s.nameLen]), eventField)
		s.isLast = ok && slices.Contains(lastEvents, strings.TrimPrefix(name, " "))
	case s.field == blank, s.field == blank-1:
		s.beginData() // an empty line of data
	case s.field == content && s.ends == len(doneData):
		s.Done, s.Bad = true, s.wasBad
	}
	s.field = 0
}
