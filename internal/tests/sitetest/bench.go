package sitetest

import (
	"net/http"
)

// A Sink is a response that nobody reads.
type Sink http.Header

// Header is that of the response.
func (d Sink) Header() http.Header { return http.Header(d) }

func (d Sink) Write(b []byte) (int, error) { return len(b), nil }

func (d Sink) WriteHeader(int) {}
