package sitetest

import (
	"net/http"
)

// Plan has a request bring a limit.
func Plan(value string) func(*http.Request) { return Header("X-Plan", value) }
