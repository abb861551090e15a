package main

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/tests/stories"
)

// comparison is what has come out.
type comparison struct {
	unsteady int // scenarios that differ from themselves
	differ   map[string]*kind
}

// kind is one of the ways in which scenarios differ.
type kind struct {
	name    string
	count   int
	example string // of the scenarios
	diff    []string
}

const (
	maxLines   = 3  // of a kind
	maxExample = 24 // lines of an example
	maxWidth   = 240
)

// add adds a scenario that differs. The example is the one with the fewest lines that do.
func (c *comparison) add(seed string, before, now []string) {
	name, diff := kindOf(before, now)
	k := c.differ[name]
	if k == nil {
		if c.differ == nil {
			c.differ = map[string]*kind{}
		}
		k = &kind{name: name}
		c.differ[name] = k
	}
	if k.count++; k.count == 1 || changed(diff) < changed(k.diff) {
		k.example, k.diff = seed, diff
	}
}

// kindOf returns in what kind of way two traces differ, and the difference: instants are left out
// of it, unless nothing else differs.
func kindOf(before, now []string) (name string, diff []string) {
	diff = stories.Diff(timeless(before), timeless(now))
	if changed(diff) == 0 {
		return "the same at other instants", stories.Diff(before, now)
	}
	var lines []string
	for _, line := range diff {
		if line = normal(line); line[0] != ' ' && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	if len(lines) > maxLines { // the first ones have brought the others along
		lines = append(lines[:maxLines-1], "and what follows from it")
	}
	return strings.Join(lines, "\n"), diff
}

// changed is how many lines of a diff are in one of both only.
func changed(diff []string) (n int) {
	for _, line := range diff {
		if line[0] != ' ' {
			n++
		}
	}
	return n
}

// timeless returns lines without the instants that they begin with.
func timeless(lines []string) []string {
	all := make([]string, len(lines))
	for i, line := range lines {
		all[i] = instant.ReplaceAllString(line, "")
	}
	return all
}

var (
	instant = regexp.MustCompile(`^ *\d+\.\d{4}  `)
	noise   = []struct {
		pattern *regexp.Regexp
		by      string
	}{
		{regexp.MustCompile(`\b[0-9A-Za-z_-]{22}\b`), "ID"},
		{regexp.MustCompile(`"[0-9a-f]{8}"|\b[0-9a-f]{32}\b`), "ID"},
		{regexp.MustCompile(`\b\d+(\.\d+){3}\b|\b[0-9a-f]+(:[0-9a-f]*)*::[0-9a-f:]*`), "ADDRESS"},
		{regexp.MustCompile(`"[a-z]"`), "KEY"},
		{regexp.MustCompile(`\d+([.e][+-]?\d+)*`), "N"},
		{regexp.MustCompile(`\bzN-N\b`), "zN"},
		{regexp.MustCompile(`-N`), "N"},
		{regexp.MustCompile(` +`), " "},
	}
)

// normal replaces what differs between lines of one kind: numbers, ids, addresses, zones and keys.
func normal(line string) string {
	for _, n := range noise {
		line = n.pattern.ReplaceAllString(line, n.by)
	}
	return line
}

// write prints the kinds, the most frequent one first.
func (c *comparison) write(w io.Writer, n int) {
	var all []*kind
	differ := 0
	for _, k := range c.differ {
		all, differ = append(all, k), differ+k.count
	}
	slices.SortFunc(all, func(a, b *kind) int { return cmp.Or(b.count-a.count, cmp.Compare(a.name, b.name)) })
	fmt.Fprintf(w, "Of %d scenarios %d are the same, %d differ, and %d differ from themselves and are left out.\n", n, n-differ-c.unsteady, differ, c.unsteady)
	for _, k := range all {
		fmt.Fprintf(w, "\n%d: all by\n", k.count)
		for line := range strings.SplitSeq(k.name, "\n") {
			fmt.Fprintf(w, "\t%s\n", clip(line))
		}
		fmt.Fprintf(w, "as scenario %s:\n", k.example)
		for _, line := range excerpt(k.diff) {
			fmt.Fprintf(w, "\t%s\n", clip(line))
		}
	}
}

// excerpt is a diff without what is far from its changed lines, and not longer than an example.
func excerpt(diff []string) (all []string) {
	const around = 2
	for i := range diff {
		switch near := diff[max(0, i-around):min(len(diff), i+around+1)]; {
		case len(all) == maxExample:
			return append(all, "…")
		case changed(near) > 0:
			all = append(all, diff[i])
		case len(all) > 0 && all[len(all)-1] != "…":
			all = append(all, "…")
		}
	}
	return all
}

func clip(line string) string {
	if r := []rune(line); len(r) > maxWidth {
		return string(r[:maxWidth]) + "…"
	}
	return line
}
