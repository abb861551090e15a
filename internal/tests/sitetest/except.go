package sitetest

import (
	"net/http"
	"strings"
	"testing"
)

// SiteInPage returns what stands in the braces of a site in a page's Caddyfile, and in those of its
// global options.
func SiteInPage(t *testing.T, page, address string) (global, site string) {
	t.Helper()
	for _, b := range BlocksOf(t, page, "caddyfile") {
		for _, part := range strings.SplitAfter(b.Text, "\n}\n") {
			part = strings.TrimSpace(part)
			if options, ok := strings.CutPrefix(part, "{\n"); ok {
				global = strings.TrimSuffix(options, "}")
			}
			if body, ok := strings.CutPrefix(part, address+" {\n"); ok {
				return global, strings.TrimSuffix(body, "}")
			}
		}
		global = ""
	}
	t.Fatalf("%s has no Caddyfile with the site %s", page, address)
	return "", ""
}

func OnPath(p string) func(*http.Request) { return func(r *http.Request) { r.URL.Path = p } }

func Method(m string) func(*http.Request) { return func(r *http.Request) { r.Method = m } }
