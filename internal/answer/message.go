package answer

import (
	"encoding/json"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// A message is the body of a denial, cut at its placeholders. It is not changed after
// compileMessage.
//
// A placeholder is {name} without braces, quotes, backslashes or control characters in its name.
// One that nobody knows stays as it is written: most of all, the braces of JSON are no
// placeholders. A brace may be escaped by a backslash, as everywhere in Caddy.
type message struct {
	parts []messagePart
	// json is set for an object or an array: then all values are written so that it stays one.
	json bool
}

// messagePart is literal text or, with a name, a placeholder.
type messagePart struct {
	text string
	name string
	// quoted is set for a placeholder within a string of JSON.
	quoted bool
}

// compileMessage cuts a text at its placeholders.
func compileMessage(text string) *message {
	m := new(message)
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			m.parts = append(m.parts, messagePart{text: literal.String()})
			literal.Reset()
		}
	}
	for text != "" {
		if name, ok := placeholderAt(text); ok {
			flush()
			m.parts = append(m.parts, messagePart{text: text[:len(name)+2], name: name})
			text = text[len(name)+2:]
			continue
		}
		if strings.HasPrefix(text, `\{`) || strings.HasPrefix(text, `\}`) {
			text = text[1:]
		}
		literal.WriteByte(text[0])
		text = text[1:]
	}
	flush()
	m.json = m.isJSON()
	return m
}

// PlaceholdersIn returns the names of a message's placeholders, in order.
func PlaceholdersIn(text string) (names []string) {
	for _, p := range compileMessage(text).parts {
		if p.name != "" {
			names = append(names, p.name)
		}
	}
	return names
}

// placeholderAt returns the name of a placeholder with which the text begins.
func placeholderAt(text string) (name string, ok bool) {
	if text[0] != '{' {
		return "", false
	}
	end := strings.IndexFunc(text[1:], func(r rune) bool { return r < ' ' || strings.ContainsRune(`{}"\`, r) }) + 1
	if end <= 1 || text[end] != '}' {
		return "", false
	}
	return text[1:end], true
}

// isJSON reports whether the message is an object or an array of JSON for all values of its
// placeholders. It notes which stand in strings.
func (m *message) isJSON() bool {
	var skeleton strings.Builder
	inString, escaped := false, false
	for i := range m.parts {
		p := &m.parts[i]
		if p.name != "" {
			p.quoted = inString
			if inString {
				skeleton.WriteByte('x')
			} else {
				skeleton.WriteString("null") // which is no part of a longer word or number
			}
			continue
		}
		skeleton.WriteString(p.text)
		for j := range len(p.text) {
			switch c := p.text[j]; {
			case escaped:
				escaped = false
			case c == '\\':
				escaped = inString
			case c == '"':
				inString = !inString
			}
		}
	}
	s := strings.TrimLeft(skeleton.String(), " \t\r\n")
	return s != "" && (s[0] == '{' || s[0] == '[') && json.Valid([]byte(s))
}

// appendTo appends the message with the values that known has for its placeholders. Values are not
// searched for placeholders again.
func (m *message) appendTo(dst []byte, known func(name string) (any, bool)) []byte {
	for i := range m.parts {
		p := &m.parts[i]
		if p.name == "" {
			dst = append(dst, p.text...)
			continue
		}
		value, ok := known(p.name)
		if !ok {
			value = p.text
		}
		switch {
		case !m.json:
			dst = append(dst, caddy.ToString(value)...)
		case p.quoted:
			quoted, _ := json.Marshal(caddy.ToString(value)) // of a string, which can't fail
			dst = append(dst, quoted[1:len(quoted)-1]...)
		default:
			dst = appendJSON(dst, value)
		}
	}
	return dst
}

// appendJSON appends a value: numbers and booleans as they are, everything else as a string.
func appendJSON(dst []byte, value any) []byte {
	switch value.(type) {
	case nil, bool, int, int32, int64, uint, uint32, uint64, float32, float64:
		if raw, err := json.Marshal(value); err == nil {
			return append(dst, raw...)
		}
	}
	quoted, _ := json.Marshal(caddy.ToString(value))
	return append(dst, quoted...)
}
