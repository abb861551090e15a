package accesslog

import (
	"bytes"
	"net/http"
	"net/netip"
)

// line reads a line in whatever format it is. It does not keep the line.
func (p *parser) line(line []byte, r *Record) (k kind, why string) {
	line = bytes.TrimSpace(line)
	switch {
	case len(line) == 0:
		return other, ""
	case line[0] == '{':
		return p.json(nil, line, r)
	}
	if k, why = p.common(line, r); k == request {
		return k, why
	}
	// Caddy's console format has columns before the JSON, and so have what journals write.
	if brace := bytes.IndexByte(line, '{'); brace > 0 && line[len(line)-1] == '}' {
		return p.json(line[:brace], line[brace:], r)
	}
	return damaged, why
}

// common reads a line in the Common or Combined Log Format, with or without the name of a virtual
// host before it:
//
//	[host:port] address ident user [time] "method uri protocol" status size ["referer" "agent"]
func (p *parser) common(line []byte, r *Record) (k kind, why string) {
	open := bytes.IndexByte(line, '[')
	if open < 0 {
		return damaged, "it is neither JSON nor in the Common or Combined Log Format"
	}
	length := bytes.IndexByte(line[open:], ']')
	if length < 0 {
		return damaged, "its time has no end"
	}
	at, ok := p.times.time(line[open+1 : open+length])
	if !ok {
		return damaged, "its time can't be read"
	}
	host, address, user, ok := columns(line[:open])
	if !ok {
		return damaged, "it has no address of a client"
	}
	asked, rest, ok := quoted(line[open+length+1:])
	if !ok {
		return damaged, "it has no request in quotes"
	}
	status, rest := word(rest)
	n, _, digits, ok := decimal(status)
	if !ok || digits != 3 {
		return damaged, "it has no status"
	}
	method, uri, proto := requestLine(asked)
	r.Start, r.Status, r.Text = at, int(n), true
	p.setTexts(r, method, host, uri, proto, address, address, user)
	size, rest := word(rest)
	if p.headers {
		r.Headers = combined(rest)
	}
	if isSize(p.field) {
		r.Field = string(size)
	}
	for _, names := range p.answers {
		text := ""
		if isSize(names) {
			text = string(size)
		}
		r.Answers = append(r.Answers, text)
	}
	return request, ""
}

// isSize reports whether names lead to the one field that such lines have.
func isSize(names []string) bool { return len(names) == 1 && names[0] == "size" }

// columns reads what stands before the time.
func columns(before []byte) (host, address, user []byte, ok bool) {
	all := bytes.FieldsFunc(before, func(c rune) bool { return c == ' ' })
	switch {
	case len(all) < 3:
		return nil, nil, nil, false
	case len(all) > 3 && isAddress(all[1]) && string(all[2]) == "-":
		host, address, user = all[0], all[1], all[3]
	default:
		address, user = all[0], all[2]
	}
	if string(user) == "-" {
		user = nil
	}
	return host, address, user, true
}

func isAddress(b []byte) bool {
	_, err := netip.ParseAddr(string(b))
	return err == nil
}

// word cuts off the next word.
func word(b []byte) (one, rest []byte) {
	b = bytes.TrimLeft(b, " ")
	if end := bytes.IndexByte(b, ' '); end >= 0 {
		return b[:end], b[end:]
	}
	return b, nil
}

// quoted cuts off what stands in quotes next, in which a backslash goes before a quote.
func quoted(b []byte) (one, rest []byte, ok bool) {
	b = bytes.TrimLeft(b, " ")
	if len(b) == 0 || b[0] != '"' {
		return nil, nil, false
	}
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return b[1:i], b[i+1:], true
		}
	}
	return nil, nil, false
}

// requestLine reads the first line of a request. What is no such line, as of a client that speaks
// another protocol, has neither method nor path.
func requestLine(line []byte) (method, uri, proto []byte) {
	first, last := bytes.IndexByte(line, ' '), bytes.LastIndexByte(line, ' ')
	switch {
	case first <= 0:
		return nil, nil, nil
	case first == last:
		return line[:first], line[first+1:], nil
	}
	return line[:first], line[first+1 : last], line[last+1:]
}

// combined reads what the Combined format adds.
func combined(rest []byte) http.Header {
	h := http.Header{}
	for _, name := range []string{"Referer", "User-Agent"} {
		value, after, ok := quoted(rest)
		if !ok {
			break
		}
		if rest = after; len(value) > 0 && string(value) != "-" {
			h.Set(name, string(value))
		}
	}
	return h
}
