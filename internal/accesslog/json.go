package accesslog

import (
	"bytes"
	"net/http"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/hostport"
)

// field is what a value of a line says.
type field uint8

const (
	unknown field = iota
	fieldRequest
	fieldLogger
	fieldTime
	fieldStart
	fieldDuration
	fieldMillis
	fieldNanos
	fieldStatus
	fieldMethod
	fieldHost
	fieldURI
	fieldProto
	fieldRemote
	fieldClient
	fieldUser
	fieldHeaders
	fieldTLS
	fieldScheme
	fieldAgent
	fieldReferer
	fieldRead
	fields
)

// named returns the field of a name in lower case: Caddy's first, then those that other servers,
// shippers and Caddy's own filters make of them. It is a switch, as a map takes longer than all
// else that is done with a name.
func named(name string) field {
	switch name {
	case "request", "req", "http", "http_request", "httprequest":
		return fieldRequest
	case "logger":
		return fieldLogger
	case "ts", "time", "timestamp", "@timestamp", "datetime", "date", "time_iso8601", "time_local", "msec":
		return fieldTime
	case "startutc", "start", "start_time":
		return fieldStart
	case "duration", "request_time", "latency", "elapsed":
		return fieldDuration
	case "duration_ms", "latency_ms", "elapsed_ms":
		return fieldMillis
	case "duration_ns", "latency_ns":
		return fieldNanos
	case "status", "status_code", "downstreamstatus", "response_status", "response_code", "statuscode":
		return fieldStatus
	case "method", "request_method", "requestmethod":
		return fieldMethod
	case "host", "http_host", "request_host", "requesthost", "authority":
		return fieldHost
	case "uri", "request_uri", "requestpath", "url":
		return fieldURI
	case "proto", "protocol", "server_protocol", "requestprotocol":
		return fieldProto
	case "remote_ip", "remote_addr", "remote_host", "remoteaddr":
		return fieldRemote
	case "client_ip", "clienthost", "clientip", "client":
		return fieldClient
	case "user_id", "remote_user", "clientusername":
		return fieldUser
	case "headers", "request_headers":
		return fieldHeaders
	case "bytes_read":
		return fieldRead
	case "tls":
		return fieldTLS
	case "scheme", "requestscheme":
		return fieldScheme
	case "user_agent", "http_user_agent":
		return fieldAgent
	case "referer", "http_referer":
		return fieldReferer
	}
	return unknown
}

// flattened begin the names of fields of a request that stands in no object of its own.
var flattened = []string{"request>", "request.", "request_", "req.", "http.request."}

// fieldOf returns what a name stands for.
func fieldOf(name []byte) field {
	if f := named(string(name)); f != unknown || len(name) > 64 {
		return f
	}
	lower := strings.ToLower(string(name))
	if f := named(lower); f != unknown {
		return f
	}
	for _, prefix := range flattened {
		if rest, ok := strings.CutPrefix(lower, prefix); ok {
			return named(rest)
		}
	}
	return unknown
}

// values are those of one line, as JSON; nil where it has none.
type values [fields][]byte

// read notes the values of an object at the scanner. Those within the request's own object come
// before others of the name: beside it, host may be the one that wrote the log.
func (v *values) read(s *scanner, inRequest bool, depth int) bool {
	return s.members('{', func(quoted []byte) bool {
		f := fieldOf(inner(quoted))
		s.space()
		if f == fieldRequest && depth < 2 && s.i < len(s.b) && s.b[s.i] == '{' {
			v[fieldRequest] = []byte{'{'}
			return v.read(s, true, depth+1)
		}
		raw, ok := s.value(depth + 1)
		if ok && (inRequest || v[fieldRequest] == nil || v[f] == nil || f >= fieldLogger && f <= fieldStatus) {
			v[f] = raw
		}
		return ok
	})
}

// text returns a value that is a string or a number, nothing for others.
func (v *values) text(f field) []byte {
	raw := v[f]
	switch {
	case len(raw) == 0:
		return nil
	case raw[0] == '"':
		return inner(raw)
	case raw[0] == '-' || isDigit(raw[0]):
		return raw
	}
	return nil
}

// A kind is what a line turned out to be.
type kind uint8

const (
	damaged kind = iota
	other        // of something else than a request
	request
)

// parser reads the lines of one file.
type parser struct {
	times   timeReader
	headers bool
	field   []string   // the names that lead to Options.Field
	answers [][]string // and to those of Options.Answers
	values  values
	text    []byte // scratch
}

// json reads a line of JSON. prefix is what stands before it in the line.
func (p *parser) json(prefix, line []byte, r *Record) (k kind, why string) {
	v := &p.values
	*v = values{}
	s := scanner{b: line}
	if !v.read(&s, false, 0) {
		return damaged, "it is no whole JSON object"
	}
	if s.space(); s.i < len(s.b) {
		return damaged, "something follows after its JSON object"
	}
	if isOther(v) {
		return other, ""
	}
	if why := p.instants(prefix, r); why != "" {
		return damaged, why
	}
	if n, _, _, ok := decimal(v.text(fieldStatus)); ok && n > 0 && n < 1000 {
		r.Status = int(n)
	}
	if n, _, _, ok := decimal(v.text(fieldRead)); ok && n >= 0 {
		r.BodySize, r.Sized = n, true
	}
	r.TLS = len(v[fieldTLS]) > 0 && v[fieldTLS][0] == '{' || string(v.text(fieldScheme)) == "https"
	p.setTexts(r, v.text(fieldMethod), v.text(fieldHost), v.text(fieldURI), v.text(fieldProto), v.text(fieldRemote), v.text(fieldClient), v.text(fieldUser))
	if r.RemoteIP == "" && r.ClientIP == "" {
		return damaged, "it has no address of a client"
	}
	if p.headers {
		r.Headers = p.header()
	}
	r.Field = string(find(line, p.field))
	for _, names := range p.answers {
		r.Answers = append(r.Answers, string(find(line, names)))
	}
	return request, ""
}

// isOther reports whether a line is not one of a request to a site. Caddy also logs errors and what
// its handlers do with the request that they are about, and requests to its admin endpoint.
func isOther(v *values) bool {
	switch logger := v.text(fieldLogger); {
	case bytes.HasPrefix(logger, []byte("admin.")),
		bytes.HasPrefix(logger, []byte("http.")) && !bytes.HasPrefix(logger, []byte("http.log.access")):
		return true
	}
	return v.text(fieldMethod) == nil && v.text(fieldURI) == nil
}

// instants reads when the request began and how long it took.
func (p *parser) instants(prefix []byte, r *Record) (why string) {
	v := &p.values
	switch {
	case v[fieldDuration] != nil:
		r.Took = p.times.duration(v.text(fieldDuration), 0)
	case v[fieldMillis] != nil:
		r.Took = p.times.duration(v.text(fieldMillis), time.Millisecond)
	case v[fieldNanos] != nil:
		r.Took = p.times.duration(v.text(fieldNanos), 1)
	}
	if at, ok := p.times.time(v.text(fieldStart)); ok {
		r.Start = at
		return ""
	}
	at, ok := p.times.time(v.text(fieldTime))
	if !ok && len(prefix) > 0 {
		column, _, _ := bytes.Cut(prefix, []byte{'\t'})
		at, ok = p.times.time(bytes.TrimSpace(column))
	}
	switch {
	case !ok && v[fieldTime] == nil:
		return "it has no time"
	case !ok:
		return "its time can't be read"
	}
	r.Start = at - int64(r.Took)
	return ""
}

// setTexts sets the texts of a request. They share one piece of memory.
func (p *parser) setTexts(r *Record, method, host, uri, proto, remote, client, user []byte) {
	texts := [...][]byte{method, host, uri, proto, remote, client, user}
	p.text = p.text[:0]
	for _, text := range texts {
		p.text = append(p.text, text...)
	}
	all := string(p.text)
	for i, to := range [...]*string{&r.Method, &r.Host, &r.URI, &r.Proto, &r.RemoteIP, &r.ClientIP, &r.User} {
		*to, all = all[:len(texts[i])], all[len(texts[i]):]
	}
	r.RemoteIP, r.ClientIP = hostport.Host(r.RemoteIP), hostport.Host(r.ClientIP)
}

// header reads the headers of a request: of each a string, or a list of them.
func (p *parser) header() http.Header {
	v := &p.values
	h := http.Header{}
	s := scanner{b: v[fieldHeaders]} // which is whole, as the line is
	s.members('{', func(quoted []byte) bool {
		name := http.CanonicalHeaderKey(string(inner(quoted)))
		add := func([]byte) bool {
			raw, ok := s.value(0)
			if ok && raw[0] == '"' {
				h[name] = append(h[name], string(inner(raw)))
			}
			return ok
		}
		return s.members('[', add) || add(nil)
	})
	for f, name := range map[field]string{fieldAgent: "User-Agent", fieldReferer: "Referer"} {
		if text := v.text(f); len(text) > 0 && h.Get(name) == "" {
			h.Set(name, string(text))
		}
	}
	return h
}
