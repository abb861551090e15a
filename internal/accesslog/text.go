package accesslog

import (
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// line reads a line in whatever format it is. It does not keep the line.
func (p *parser) line(line []byte, r *Record) (k kind, why string) {
	text := strings.TrimSpace(string(line))
	switch {
	case text == "":
		return other, ""
	case text[0] == '{':
		return p.json("", text, r)
	}
	if k, why = p.common(text, r); k == request {
		return k, why
	}
	// Caddy's console format has columns before the JSON, and so have what journals write.
	if brace := strings.IndexByte(text, '{'); brace > 0 && text[len(text)-1] == '}' {
		return p.json(text[:brace], text[brace:], r)
	}
	return damaged, why
}

// common reads a line in the Common or Combined Log Format, with or without the name of a virtual
// host before it:
//
//	[host:port] address ident user [time] "method uri protocol" status size ["referer" "agent"]
func (p *parser) common(line string, r *Record) (k kind, why string) {
	before, rest, ok := strings.Cut(line, "[")
	if !ok {
		return damaged, "it is neither JSON nor in the Common or Combined Log Format"
	}
	at, rest, ok := strings.Cut(rest, "]")
	if !ok {
		return damaged, "its time has no end"
	}
	if r.Start, ok = p.times.time(at); !ok {
		return damaged, "its time can't be read"
	}
	columns := strings.Fields(before)
	if len(columns) < 3 {
		return damaged, "it has no address of a client"
	}
	host := ""
	if len(columns) > 3 && isAddress(columns[1]) && columns[2] == "-" {
		host, columns = columns[0], columns[1:]
	}
	asked, rest, ok := quoted(rest)
	if !ok {
		return damaged, "it has no request in quotes"
	}
	status, rest, _ := strings.Cut(strings.TrimLeft(rest, " "), " ")
	if r.Status, _ = strconv.Atoi(status); r.Status < 100 || r.Status > 999 {
		return damaged, "it has no status"
	}
	size, rest, _ := strings.Cut(strings.TrimLeft(rest, " "), " ")
	method, uri, proto := requestLine(asked)
	address, user := columns[0], columns[2]
	if user == "-" {
		user = ""
	}
	r.Text = true
	r.setTexts(method, host, uri, proto, address, address, user)
	if p.headers {
		r.Headers = combined(rest)
	}
	if slices.Contains(p.fields, "size") {
		r.setField("size", size)
	}
	return request, ""
}

func isAddress(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

// quoted cuts off what stands in quotes next, in which a backslash goes before a quote.
func quoted(text string) (one, rest string, ok bool) {
	text, ok = strings.CutPrefix(strings.TrimLeft(text, " "), `"`)
	for i := 0; ok && i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return text[:i], text[i+1:], true
		}
	}
	return "", "", false
}

// requestLine reads the first line of a request. What is no such line, as of a client that speaks
// another protocol, has neither method nor path.
func requestLine(line string) (method, uri, proto string) {
	method, uri, _ = strings.Cut(line, " ")
	if method == line || method == "" {
		return "", "", ""
	}
	if last := strings.LastIndexByte(uri, ' '); last >= 0 {
		uri, proto = uri[:last], uri[last+1:]
	}
	return method, uri, proto
}

// combined reads what the Combined format adds.
func combined(rest string) http.Header {
	h := http.Header{}
	for _, name := range []string{"Referer", "User-Agent"} {
		value, after, ok := quoted(rest)
		if !ok {
			break
		}
		if rest = after; value != "" && value != "-" {
			h.Set(name, strings.Clone(value))
		}
	}
	return h
}
