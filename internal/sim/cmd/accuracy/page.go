package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// page is the document whose sections are written.
const page = "docs/internals/accuracy-figures.md"

// A section stands between these two lines. All else on a page is written by hand.
const (
	begins = "<!-- figures: %s, written by go run ./internal/sim/cmd/accuracy -->\n"
	ends   = "<!-- end of figures -->\n"
)

// writeSections works out the sections that are wanted, and writes them.
func writeSections(sections map[string]func() (string, error), wanted func(name string) bool) error {
	bodies := make(map[string]string)
	for name, work := range sections {
		if !wanted(name) {
			continue
		}
		start := time.Now()
		body, err := work()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		bodies[name] = body
		progress(name, start)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	out := string(text)
	for name, body := range bodies {
		if out, err = replace(out, name, body); err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
	}
	return os.WriteFile(page, []byte(out), 0o644)
}

func has(text, name string) bool { return strings.Contains(text, fmt.Sprintf(begins, name)) }

// check says which tables and plots the page lacks, and which sections have no table.
func check() error {
	var wrong []error
	text, err := os.ReadFile(filepath.FromSlash(page))
	if err != nil {
		return err
	}
	all := string(text)
	for _, m := range regexp.MustCompile(`<!-- figures: (\S+),`).FindAllStringSubmatch(all, -1) {
		if _, ok := tables[m[1]]; !ok && m[1] != "real" {
			wrong = append(wrong, fmt.Errorf("the page has a section %q that no table writes", m[1]))
		}
		_, rest, _ := strings.Cut(all, fmt.Sprintf(begins, m[1]))
		if body, _, ended := strings.Cut(rest, ends); !ended || strings.Count(body, "\n|") < 3 {
			wrong = append(wrong, fmt.Errorf("section %q has no end or no table: %q", m[1], body))
		}
	}
	for name := range tables {
		if !has(all, name) {
			wrong = append(wrong, fmt.Errorf("the page has no section %q", name))
		}
	}
	for name := range plots {
		_, err := os.Stat(filepath.Join("docs", "accuracy", name+".svg"))
		if !strings.Contains(all, "accuracy/"+name+".svg") {
			err = fmt.Errorf("the page doesn't show %s.svg", name)
		}
		wrong = append(wrong, err)
	}
	return errors.Join(wrong...)
}

// replace puts a body into a section.
func replace(text, name, body string) (string, error) {
	mark := fmt.Sprintf(begins, name)
	before, rest, _ := strings.Cut(text, mark)
	_, after, ok := strings.Cut(rest, ends)
	if !ok {
		return "", fmt.Errorf("section %q has no end", name)
	}
	return before + mark + "\n" + strings.TrimSpace(body) + "\n\n" + ends + after, nil
}

// A grid is a table in Markdown.
type grid struct{ strings.Builder }

func newGrid(columns ...string) *grid {
	g := &grid{}
	g.row(columns...)
	g.WriteString(strings.Repeat("|---", len(columns)) + "|\n")
	return g
}

func (g *grid) row(cells ...string) { g.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
