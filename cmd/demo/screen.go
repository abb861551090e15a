package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
)

// line is one second.
type line struct {
	elapsed time.Duration
	window  int64 // its number
	zones   []cluster.Zone
	denied  int
}

// admitted is what all nodes have admitted in this window.
func (l line) admitted() (sum int64) {
	for _, z := range l.zones {
		sum += z.Own
	}
	return sum
}

// unseen is how many of those the least informed node doesn't know of.
func (l line) unseen() int64 {
	all := l.admitted()
	least := all
	for _, z := range l.zones {
		least = min(least, z.Known())
	}
	return all - least
}

// screen writes lines under a heading, with a rule where a window ends.
type screen struct {
	out    io.Writer
	color  bool
	window int64
}

func newScreen(out io.Writer, color bool) *screen { return &screen{out: out, color: color} }

const (
	headings = "" +
		"        node 1      node 2      node 3      all three\n" +
		" time   own others  own others  own others  admitted unseen  denied\n"
	barWidth = 10
)

func (s *screen) print(l line) {
	if s.window == 0 {
		for heading := range strings.Lines(headings) {
			fmt.Fprintln(s.out, s.paint(bold, strings.TrimSuffix(heading, "\n")))
		}
	}
	s.rule(l.window)
	fmt.Fprintf(s.out, "%4.0fs ", l.elapsed.Seconds())
	for _, z := range l.zones {
		fmt.Fprintf(s.out, " %5d %s", z.Own, s.paint(dim, fmt.Sprintf("%+5d", z.Remote)))
	}
	admitted, style := l.admitted(), plain
	if admitted > limit {
		style = red
	}
	unseen := ""
	if n := l.unseen(); n > 0 {
		unseen = fmt.Sprint(n)
	}
	fmt.Fprintf(s.out, "  %s %s %7d  %s\n", s.paint(style, fmt.Sprintf("%4d/%d", admitted, limit)),
		s.paint(yellow, fmt.Sprintf("%6s", unseen)), l.denied, s.paint(blue, bar(admitted)))
}

// rule writes one where another window begins.
func (s *screen) rule(number int64) {
	if s.window != 0 && s.window != number {
		fmt.Fprintln(s.out, s.paint(dim, fmt.Sprintf("---- a new window of %s: the counts start at zero %s", window, strings.Repeat("-", 32))))
	}
	s.window = number
}

// bar shows how far the limit is reached; an exclamation mark is beyond it.
func bar(admitted int64) string {
	n := int(min(admitted, limit) * barWidth / limit)
	b := strings.Repeat("#", n) + strings.Repeat(".", barWidth-n)
	if admitted > limit {
		b += "!"
	}
	return b
}

type style string

const (
	plain  style = ""
	bold   style = "\x1b[1m"
	dim    style = "\x1b[2m"
	red    style = "\x1b[31m"
	yellow style = "\x1b[33m"
	blue   style = "\x1b[36m"
)

// paint adds a style where the output is a terminal.
func (s *screen) paint(style style, text string) string {
	if !s.color || style == plain {
		return text
	}
	return string(style) + text + "\x1b[0m"
}
