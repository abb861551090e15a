package sitetest

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-tide/ratelimit/internal/limits"
)

// Block is a fenced block of a page.
type Block struct {
	Page, Language, Text string
	Line                 int
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

func ReadPage(t testing.TB, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Pages are those at the top, in docs, in docs/internals and in docs/migration.
func Pages(t testing.TB) []string {
	t.Helper()
	pages := []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/internals/*.md", "docs/migration/*.md"} {
		all, err := filepath.Glob(pattern)
		if err != nil || len(all) == 0 {
			t.Fatalf("Glob(%s) = %d files, %v", pattern, len(all), err)
		}
		pages = append(pages, all...)
	}
	return pages
}

// BlocksOf are a page's fenced blocks of a language.
func BlocksOf(t testing.TB, page, language string) (all []Block) {
	t.Helper()
	var open *Block
	for i, line := range strings.Split(ReadPage(t, page), "\n") {
		switch {
		case open != nil && line == "```":
			if open.Language == language {
				all = append(all, *open)
			}
			open = nil
		case open != nil:
			open.Text += line + "\n"
		case strings.HasPrefix(line, "```"):
			open = &Block{Page: page, Language: strings.TrimPrefix(line, "```"), Line: i + 2}
		}
	}
	if open != nil {
		t.Errorf("%v: the block has no end", open)
	}
	return all
}

// FirstOf is the limit of a zone with the shortest window.
func FirstOf(z *limits.Zone) *limits.Limit {
	for l := range z.Each {
		return l
	}
	return nil
}

func HeapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

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
