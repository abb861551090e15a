package main

import (
	"go/ast"
	"path"
	"regexp"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

// A code is that of a warning: what it is, and what to do.
type code struct{ name, what, rest, since string }

func (s *source) addCode(name string, value ast.Expr, doc string) {
	literal, ok := value.(*ast.BasicLit)
	if !ok || !strings.HasPrefix(literal.Value, `"TIDE`) {
		return
	}
	f := newField(name, doc)
	what, rest, _ := strings.Cut(strings.TrimPrefix(strings.Join(strings.Fields(doc), " "), name+" is "), ". ")
	s.codes = append(s.codes, code{strings.Trim(literal.Value, `"`), what, rest, f.since})
}

var docLink = regexp.MustCompile(`(See )?docs/(([a-z/-]+)\.md(?:#[a-z_-]+)?)`)

// linked makes links of the pages that a comment names. One after "See" begins the sentence.
func linked(text string) string {
	return docLink.ReplaceAllStringFunc(text, func(page string) string {
		m := docLink.FindStringSubmatch(page)
		name := strings.ReplaceAll(path.Base(m[3]), "-", " ")
		if m[1] != "" {
			name = upper(name)
		}
		return "[" + name + "](" + m[2] + ")"
	})
}

// warnings has each code.
func (s *source) warnings() string {
	var page strings.Builder
	for _, c := range s.codes {
		text := "**" + upper(c.what) + ".** " + linked(marked(c.rest))
		if warning.CanBeQuiet(c.name) != nil {
			text += " *Always logged.*"
		}
		if c.since != since {
			text += " **Since**: " + c.since + "."
		}
		page.WriteString("\n## " + c.name + "\n\n" + wrap(text, ""))
	}
	return page.String()
}

// upper returns a text that begins a sentence; what is code stays as it is.
func upper(text string) string {
	if word, _, _ := strings.Cut(text, " "); strings.Contains(word, "_") {
		return marked(text)
	}
	return strings.ToUpper(text[:1]) + text[1:]
}
