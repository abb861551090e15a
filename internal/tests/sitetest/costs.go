package sitetest

import (
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// ValueOf returns what a placeholder has in a request.
func ValueOf(r *http.Request, name string) string {
	value, _ := reqkey.ReplacerOf(r).GetString(name)
	return value
}
