package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	maxProse = 110 // columns of a line of a page; the house wraps at 100
	maxTable = 6   // columns of a table, except in the notes of internals
)

var internals = filepath.FromSlash("docs/internals/")

// page checks a page without its code: the words, how wide its lines are, and how many columns its
// tables have.
func (l *linter) page(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	code := false
	for i, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		}
		if code || strings.HasPrefix(line, "    ") {
			continue
		}
		where := fmt.Sprintf("%s:%d", path, i+1)
		plain := codeSpan.ReplaceAllString(line, "")
		l.words(where, plain)
		if strings.HasPrefix(line, "|") {
			if n := strings.Count(strings.ReplaceAll(plain, `\|`, ""), "|") - 1; n > maxTable && !strings.HasPrefix(path, internals) {
				l.report(where, "a table of %d columns, at most %d: make two of it", n, maxTable)
			}
		} else if n := utf8.RuneCountInString(line); n > maxProse && canWrap(line) {
			l.report(where, "a line of %d columns, at most %d", n, maxProse)
		}
	}
	return nil
}

var (
	codeSpan = regexp.MustCompile("`[^`]*`")
	listMark = regexp.MustCompile(`^ *(?:[-*] |\d+\. )?`)
)

// canWrap reports whether a line has a place to wrap it at, which a single long link or piece of
// code has not.
func canWrap(line string) bool {
	return strings.Contains(strings.TrimSpace(codeSpan.ReplaceAllString(line[len(listMark.FindString(line)):], "x")), " ")
}
