// Package accesslog reads the access logs of web servers: the requests of several files as one
// stream, in the order in which they began.
//
// It reads Caddy's JSON in every time and duration format, the JSON of others as far as the names
// of its fields tell, and the Common and Combined Log Format; compressed by gzip or not, mixed in
// one file or not. Memory is bounded whatever a file holds.
package accesslog

import (
	"net/http"
	"time"
)

// A Record is a request of a log.
type Record struct {
	// Start is when the request began, in nanoseconds since the Unix epoch: the time of the line
	// less the duration, where the line has one.
	Start int64
	// Took is how long it took, 0 where that is not known.
	Took time.Duration
	// Status is what was answered, 0 where that is not known.
	Status int
	// BodySize is how many bytes of the request's body were read, where Sized is set.
	BodySize int64
	Sized    bool

	Method, Host, URI, Proto string
	// RemoteIP is the address that the connection came from, ClientIP the client's as the server
	// took it; either may be empty.
	RemoteIP, ClientIP string
	// User is who was authenticated.
	User string
	// TLS is set where the line says that the connection was encrypted.
	TLS bool
	// Text is set where the line was in the Common or Combined Log Format.
	Text bool
	// Headers are those of the request, nil where the line has none or Options.Headers is not set.
	Headers http.Header
	// Fields are the values of Options.Fields, as text; empty where the line has none.
	Fields map[string]string
}

// Options say how logs are read.
type Options struct {
	// Reorder is by how much lines may be out of order, 0 or more.
	Reorder time.Duration
	// Headers is set where somebody needs the headers.
	Headers bool
	// Fields are those of JSON that somebody needs, as in resp_headers.X-Cost. The Common and
	// Combined formats have size.
	Fields []string
}

// Stats are what was read.
type Stats struct {
	// Lines are all. Each is a request, or one that tells of something else, or Damaged, or Late:
	// it began more than Options.Reorder before what was read before.
	Lines    int64 `json:"lines"`
	Requests int64 `json:"-"`
	Other    int64 `json:"other"`
	Damaged  int64 `json:"damaged"`
	Late     int64 `json:"late"`
	// Texts are requests in the Common or Combined Log Format.
	Texts int64 `json:"-"`
	// Early is how many requests were handed on before Options.Reorder was over, as more than
	// maxHeld began in that time.
	Early int64 `json:"-"`
	// Troubles are the first damaged and the first late lines.
	Troubles []Trouble `json:"troubles,omitempty"`
}

// Trouble is a line that was left out.
type Trouble struct {
	File string `json:"file"`
	// Line is its number, from 1.
	Line int64  `json:"line"`
	Why  string `json:"why"`
	Late bool   `json:"-"`
}

// maxTroubles is how many lines of a kind are shown.
const maxTroubles = 3

// trouble notes a line that is left out.
func (s *Stats) trouble(t Trouble) {
	n := &s.Damaged
	if t.Late {
		n = &s.Late
	}
	if *n++; *n <= maxTroubles {
		s.Troubles = append(s.Troubles, t)
	}
}
