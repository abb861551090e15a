package accesslog

import (
	"bytes"
	"strings"
)

// fieldsOf returns the names that lead to a field, nil for none.
func fieldsOf(field string) []string {
	if field == "" {
		return nil
	}
	return strings.Split(field, ".")
}

// find returns the value of a field of a line, which is whole: what a string or a number says, or
// the only one in a list. Names are compared without their case, as those of headers are.
func find(line []byte, names []string) []byte {
	raw := line
	for _, name := range names {
		s := scanner{b: raw}
		raw = nil
		s.members('{', func(quoted []byte) bool {
			value, ok := s.value(0)
			if ok && raw == nil && bytes.EqualFold(inner(quoted), []byte(name)) {
				raw = value
			}
			return ok
		})
	}
	if len(raw) > 0 && raw[0] == '[' {
		s, n := scanner{b: raw}, 0
		s.members('[', func([]byte) bool {
			value, ok := s.value(0)
			raw = value
			n++
			return ok
		})
		if n != 1 {
			return nil
		}
	}
	switch {
	case len(raw) == 0 || raw[0] == '[' || raw[0] == '{':
		return nil
	case raw[0] == '"':
		return inner(raw)
	}
	return raw
}
