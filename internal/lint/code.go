package main

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"
)

// otherWords are words for what has another name in this repository. A reader who meets two words
// looks for two things.
var otherWords = map[string]*regexp.Regexp{
	"sync":                                 word(`exchang(e|es|ed|ing)`),
	"deny a request, reject anything else": word(`refus(e|es|ed|ing|al|als)`),
	"refund":                               word(`(give|gives|given|gave|giving) back`),
	"again":                                word(`anew`),
	"except":                               word(`but for`),
	"without an answer":                    word(`in vain`),
	"centralized limiter":                  word(`exact (store|counter)`),
}

func word(text string) *regexp.Regexp { return regexp.MustCompile(`(?i)\b` + text + `\b`) }

// width counts a tab as four columns.
func (r *repo) width() {
	check := func(file string, n int, line string) {
		if c := utf8.RuneCountInString(line) + 3*strings.Count(line, "\t"); c > 100 && !strings.HasPrefix(line, "//go:") {
			r.report(fmt.Sprintf("%s:%d", file, n), "a comment of %d columns, at most 100", c)
		}
	}
	for _, s := range r.all {
		lines := strings.Split(r.texts[s.path], "\n")
		for _, group := range s.Comments {
			for n := r.line(group.Pos()); n <= r.line(group.End()); n++ {
				r.seen++
				check(s.path, n, lines[n-1])
			}
		}
	}
	for file, text := range r.texts {
		for i, line := range strings.Split(text, "\n") {
			if path.Ext(file) == ".lua" && strings.Contains(line, "--") {
				check(file, i+1, line)
			}
		}
	}
}

// oneWord checks comments, except in tests, and pages, except in code.
func (r *repo) oneWord() {
	check := func(where, text string) {
		for name, word := range otherWords {
			if found := word.FindString(text); found != "" {
				r.report(where, "%q; the word here is: %s", found, name)
			}
		}
	}
	each(r, r.code, func(_ *source, c *ast.Comment) { check(r.at(c.Pos()), c.Text) })
	r.prose(func(where, line string) { check(where, codeSpan.ReplaceAllString(line, "")) })
}
