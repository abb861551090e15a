package accesslog

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

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
	case "method", "requestmethod":
		return fieldMethod
	case "host", "http_host", "requesthost", "authority":
		return fieldHost
	case "uri", "requestpath", "url":
		return fieldURI
	case "proto", "protocol", "server_protocol", "requestprotocol":
		return fieldProto
	case "remote_ip", "remote_addr", "remote_host", "remoteaddr":
		return fieldRemote
	case "client_ip", "clienthost", "clientip", "client":
		return fieldClient
	case "user_id", "remote_user", "clientusername":
		return fieldUser
	case "headers":
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
func fieldOf(name string) field {
	name = strings.ToLower(name)
	if f := named(name); f != unknown {
		return f
	}
	for _, prefix := range flattened {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return named(rest)
		}
	}
	return unknown
}

// values are those of one line.
type values [fields]gjson.Result

// read notes the values of an object. Those within the request's own object come before others of
// the name: beside it, host may be the one that wrote the log.
func (v *values) read(object gjson.Result, depth int) {
	object.ForEach(func(name, value gjson.Result) bool {
		switch f := fieldOf(name.Str); {
		case f == fieldRequest && value.IsObject() && depth < 2:
			v[f] = value
			v.read(value, depth+1)
		case depth > 0 || !v[fieldRequest].Exists() || !v[f].Exists() || f >= fieldLogger && f <= fieldStatus:
			v[f] = value
		}
		return true
	})
}

// text returns a value that is a string or a number, nothing for others.
func (v *values) text(f field) string {
	switch value := v[f]; value.Type {
	case gjson.String:
		return value.Str
	case gjson.Number:
		return value.Raw
	}
	return ""
}

// find returns the value of a field: what a string or a number says, or the only one in a list.
// Names are compared without their case, as those of headers are.
func find(value gjson.Result, names []string) string {
	for _, name := range names {
		object := value
		if value = (gjson.Result{}); !object.IsObject() {
			return ""
		}
		object.ForEach(func(key, of gjson.Result) bool {
			if strings.EqualFold(key.Str, name) {
				value = of
			}
			return !value.Exists()
		})
	}
	if value.IsArray() {
		if all := value.Array(); len(all) == 1 {
			value = all[0]
		}
	}
	switch value.Type {
	case gjson.String:
		return value.Str
	case gjson.JSON:
		return ""
	}
	return value.Raw
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
	fields  []string // Options.Fields
	values  values
}

// maxContainers is how many objects and lists a line may have: each that is open takes stack.
const maxContainers = 10_000

// json reads a line of JSON. prefix is what stands before it in the line.
func (p *parser) json(prefix, line string, r *Record) (k kind, why string) {
	if strings.Count(line, "[")+strings.Count(line, "{") > maxContainers {
		return damaged, "it has more than 10,000 objects and lists"
	}
	if !gjson.Valid(line) {
		var first json.RawMessage
		if json.NewDecoder(strings.NewReader(line)).Decode(&first) == nil {
			return damaged, "something follows after its JSON object"
		}
		return damaged, "it is no whole JSON object"
	}
	v, object := &p.values, gjson.Parse(line)
	*v = values{}
	v.read(object, 0)
	if isOther(v) {
		return other, ""
	}
	if why := p.instants(prefix, r); why != "" {
		return damaged, why
	}
	if n, err := strconv.Atoi(v.text(fieldStatus)); err == nil && n > 0 && n < 1000 {
		r.Status = n
	}
	if n, err := strconv.ParseInt(v.text(fieldRead), 10, 64); err == nil && n >= 0 {
		r.BodySize, r.Sized = n, true
	}
	r.TLS = v[fieldTLS].IsObject() || v.text(fieldScheme) == "https"
	r.setTexts(v.text(fieldMethod), v.text(fieldHost), v.text(fieldURI), v.text(fieldProto), v.text(fieldRemote), v.text(fieldClient), v.text(fieldUser))
	if r.RemoteIP == "" && r.ClientIP == "" {
		return damaged, "it has no address of a client"
	}
	if p.headers {
		r.Headers = v.header()
	}
	for _, name := range p.fields {
		r.setField(name, find(object, strings.Split(name, ".")))
	}
	return request, ""
}

// isOther reports whether a line is not one of a request to a site. Caddy also logs errors and what
// its handlers do with the request that they are about, and requests to its admin endpoint.
func isOther(v *values) bool {
	switch logger := v.text(fieldLogger); {
	case strings.HasPrefix(logger, "admin."),
		strings.HasPrefix(logger, "http.") && !strings.HasPrefix(logger, "http.log.access"):
		return true
	}
	return v[fieldMethod].Type != gjson.String && v[fieldURI].Type != gjson.String
}

// instants reads when the request began and how long it took.
func (p *parser) instants(prefix string, r *Record) (why string) {
	v := &p.values
	switch {
	case v[fieldDuration].Exists():
		r.Took = p.times.duration(v.text(fieldDuration), 0)
	case v[fieldMillis].Exists():
		r.Took = p.times.duration(v.text(fieldMillis), time.Millisecond)
	case v[fieldNanos].Exists():
		r.Took = p.times.duration(v.text(fieldNanos), 1)
	}
	if at, ok := p.times.time(v.text(fieldStart)); ok {
		r.Start = at
		return ""
	}
	at, ok := p.times.time(v.text(fieldTime))
	if !ok {
		column, _, _ := strings.Cut(prefix, "\t")
		at, ok = p.times.time(strings.TrimSpace(column))
	}
	switch {
	case !ok && !v[fieldTime].Exists():
		return "it has no time"
	case !ok:
		return "its time can't be read"
	}
	r.Start = at - int64(r.Took)
	return ""
}

// setTexts sets the texts of a request. They share one piece of memory, and none with the line.
func (r *Record) setTexts(texts ...string) {
	all := strings.Join(texts, "")
	for i, to := range [...]*string{&r.Method, &r.Host, &r.URI, &r.Proto, &r.RemoteIP, &r.ClientIP, &r.User} {
		*to, all = all[:len(texts[i])], all[len(texts[i]):]
	}
	r.RemoteIP, r.ClientIP = hostport.Host(r.RemoteIP), hostport.Host(r.ClientIP)
}

// setField sets one of Fields to a copy of a text.
func (r *Record) setField(name, text string) {
	if r.Fields == nil {
		r.Fields = map[string]string{}
	}
	r.Fields[name] = strings.Clone(text)
}

// header reads the headers of a request: of each a string, or a list of them.
func (v *values) header() http.Header {
	h := http.Header{}
	v[fieldHeaders].ForEach(func(name, value gjson.Result) bool {
		for _, of := range value.Array() {
			if of.Type == gjson.String && name.Type == gjson.String {
				h.Add(strings.Clone(name.Str), strings.Clone(of.Str))
			}
		}
		return true
	})
	for f, name := range map[field]string{fieldAgent: "User-Agent", fieldReferer: "Referer"} {
		if text := v.text(f); text != "" && h.Get(name) == "" {
			h.Set(name, strings.Clone(text))
		}
	}
	return h
}
