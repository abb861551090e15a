package main

import (
	"go/ast"
	"regexp"
)

// otherWords are words for what has another name in this repository. A reader who meets two words
// looks for two things.
var otherWords = []struct {
	word *regexp.Regexp
	name string
}{
	{word(`exchang(e|es|ed|ing)`), "sync"},
	{word(`refus(e|es|ed|ing|al|als)`), "deny a request, reject anything else"},
	{word(`(give|gives|given|gave|giving) back`), "refund"},
	{word(`anew`), "again"},
	{word(`but for`), "except"},
	{word(`in vain`), "without an answer"},
	{word(`exact (store|counter)`), "centralized limiter"},
}

func word(text string) *regexp.Regexp { return regexp.MustCompile(`(?i)\b` + text + `\b`) }

// words reports the words of a text that have another name.
func (l *linter) words(where, text string) {
	for _, w := range otherWords {
		if found := w.word.FindString(text); found != "" {
			l.report(where, "%q; the word here is: %s", found, w.name)
		}
	}
}

// commentWords checks the words of comments.
func (l *linter) commentWords(file *ast.File) {
	for _, group := range file.Comments {
		for _, c := range group.List {
			l.words(l.at(c.Pos()), c.Text)
		}
	}
}
