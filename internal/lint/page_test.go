package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestPagesCanBeRead(t *testing.T) {
	t.Chdir(t.TempDir())
	long := strings.Repeat("word ", 23)
	for _, c := range []struct {
		path, text string
		want       []string
	}{
		{"a.md", "short\n" + long, []string{"a.md:2: a line of 115 columns, at most 110"}},
		{"b.md", "```\n" + long + "\n```\n    " + long + "\n- [link](" + strings.Repeat("x", 120) + ")\n- `" + long + "`\n", nil},
		{"c.md", "|a|b|c|d|e|f|`g|h`|\n", []string{"c.md:1: a table of 7 columns, at most 6: make two of it"}},
		{"d.md", "|a|b|c|d|e|f \\| g, `h|i`|\n" + "| " + long + " |\n", nil},
		{"docs/internals/e.md", "|a|b|c|d|e|f|g|\n", nil},
		{"docs/f.md", "It is done anew.\n", []string{`docs/f.md:1: "anew"; the word here is: again`}},
	} {
		if err := os.MkdirAll("docs/internals", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(c.path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var l linter
		if err := l.page(c.path); err != nil || !slices.Equal(l.findings, c.want) {
			t.Errorf("%s: %q, %v, want %q", c.path, l.findings, err, c.want)
		}
	}
}
