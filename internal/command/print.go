package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// printer writes what a command shows.
type printer struct {
	out  io.Writer
	now  func() time.Time
	json bool
	// colors is set for a terminal that shows them.
	colors bool
	// width is that of the terminal, 0 where there is none.
	width int
	// several is set where several nodes are asked in turn.
	several bool
}

// printerTo returns one that writes to out: as wide as a terminal, and with colors unless somebody
// wants none.
func printerTo(out io.Writer, json bool) printer {
	p := printer{out: out, now: time.Now, json: json}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		p.colors = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		p.width, _, _ = term.GetSize(int(file.Fd())) // 0 where it is not known
	}
	return p
}

// decided are the cells of tables, and the ends of sentences, that have a color.
var decided = regexp.MustCompile(`(?m)(^|  |is )(admitted|denied|reserved|banned|barred|too_large|unavailable|would_deny|shadow)(  |\.| by |,|$)`)

// colored gives decisions a color: green, red, and yellow for what denies nobody.
func colored(text string) string {
	return decided.ReplaceAllStringFunc(text, func(s string) string {
		m := decided.FindStringSubmatch(s)
		color := "31"
		switch m[2] {
		case "admitted":
			color = "32"
		case "would_deny", "shadow":
			color = "33"
		}
		return m[1] + "\x1b[" + color + "m" + m[2] + "\x1b[0m" + m[3]
	})
}

// printable escapes what could drive a terminal, or pass for something else there.
func printable(s string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// read reads an answer of the endpoint.
func read(text []byte, answer any) error {
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%w: %w", errNoEndpoint, err)
	}
	return nil
}

// show asks and prints the answer: with --json as it came, and else by print.
func show[T any](p printer, c client, method, path string, body any, print func(T) error) error {
	text, err := c.ask(method, path, body)
	if err != nil {
		return err
	}
	if p.json {
		return p.raw(text)
	}
	var answer T
	if err := read(text, &answer); err != nil {
		return err
	}
	return print(answer)
}

// raw writes JSON with line breaks. In its strings what could drive a terminal is escaped; else it
// is as it came.
func (p printer) raw(text []byte) error {
	var indented bytes.Buffer
	if err := json.Indent(&indented, bytes.TrimSpace(text), "", "  "); err != nil {
		return fmt.Errorf("%w: %w", errNoEndpoint, err)
	}
	b := p.page()
	for _, r := range indented.String() {
		if r == '\n' || unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	b.WriteByte('\n')
	return p.print(&b)
}

// value writes a value as JSON.
func (p printer) value(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return p.raw(text)
}

// print writes a page.
func (p printer) print(b *page) error {
	text := b.String()
	if p.colors {
		text = colored(text)
	}
	_, err := io.WriteString(p.out, text)
	return err
}

// A page is put together, and then written at once.
type page struct {
	bytes.Buffer
	width int // of the terminal, 0 for any
}

// page returns an empty page as wide as the terminal.
func (p printer) page() page { return page{width: p.width} }

// line adds a line of text.
func (b *page) line(format string, args ...any) {
	b.WriteString(printable(fmt.Sprintf(format, args...)) + "\n")
}

const (
	// gap is between columns.
	gap = 2
	// names is how many columns tell the rows of a table apart.
	names = 2
	// leastProse is the width from which on the last column is wrapped.
	leastProse = 24
)

// table adds rows in columns, the first one being the heads. Columns without a cell are left out.
// Without any other row it adds nothing. What is wider than the terminal goes on below in a table
// of the other columns; in the last column lines are wrapped.
func (b *page) table(rows [][]string) {
	if len(rows) < 2 {
		return
	}
	rows, widths := filled(rows)
	n, width := 0, 0
	for n < len(widths) && (b.width == 0 || width+widths[n] <= b.width) {
		width += widths[n] + gap
		n++
	}
	prose := 0
	if n == len(widths)-1 && b.width-width >= leastProse {
		n, prose = n+1, b.width-width
	}
	n = min(max(n, names+1), len(widths)) // one that is too wide is not made narrower
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row[:n] {
			if i == n-1 && prose > 0 {
				cell = strings.Join(wrapped(cell, prose), "\n"+strings.Repeat(" ", width))
			}
			fmt.Fprintf(&line, "%-*s", widths[i]+gap, cell)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	if n == len(widths) {
		return
	}
	b.WriteByte('\n')
	for i, row := range rows {
		rows[i] = slices.Concat(row[:names], row[n:])
	}
	b.table(rows)
}

// filled returns the columns of a table that have a cell below their head, and how wide each is.
func filled(rows [][]string) (all [][]string, widths []int) {
	all = make([][]string, len(rows))
	for i := range rows[0] {
		if !slices.ContainsFunc(rows[1:], func(row []string) bool { return row[i] != "" }) {
			continue
		}
		width := 0
		for n, row := range rows {
			cell := printable(row[i])
			all[n], width = append(all[n], cell), max(width, utf8.RuneCountInString(cell))
		}
		widths = append(widths, width)
	}
	return all, widths
}

// wrapped breaks a text between words.
func wrapped(text string, width int) (lines []string) {
	for _, word := range strings.Fields(text) {
		if n := len(lines) - 1; n >= 0 && utf8.RuneCountInString(lines[n]+" "+word) <= width {
			lines[n] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// list adds a table, or says that there is none.
func (b *page) list(rows [][]string, none string) {
	if len(rows) == 1 {
		b.line("%s", none)
	}
	b.table(rows)
}

// in says how far a time is ahead, rounded up: what has just been set for 5m ends in 5m.
func (p printer) in(t time.Time) string {
	return "in " + config.LengthText(t.Sub(p.now())+time.Second/2-1)
}

// ago says how long a time is past, "" where it is not known.
func (p printer) ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return config.LengthText(p.now().Sub(t)) + " ago"
}

// endsAt says when something ends.
func (p printer) endsAt(t time.Time) string {
	if t.Sub(p.now()) > control.Forever-365*24*time.Hour {
		return "never"
	}
	return p.in(t)
}

func percent(share float64) string { return strconv.FormatFloat(share*100, 'f', -1, 64) + "%" }

func number[N int | int64](n N) string { return strconv.FormatInt(int64(n), 10) }

// some writes a number, "" for 0.
func some[N int | int64](n N) string {
	if n == 0 {
		return ""
	}
	return number(n)
}

// known writes a number that is not known everywhere.
func known(n *int64) string {
	if n == nil {
		return ""
	}
	return number(*n)
}

// length writes a number of seconds.
func length(seconds float64) string {
	if seconds < 60 {
		return strconv.FormatFloat(seconds, 'f', -1, 64) + "s"
	}
	return config.LengthText(time.Duration(seconds * float64(time.Second)))
}

// shortID is an id as people see it.
func shortID(id string) string { return id[:min(len(id), keys.ShortDigits)] }

// limitText writes a limit, which may come from a placeholder.
func limitText(n int64, window string, concurrent bool, from string) string {
	switch {
	case concurrent:
		return number(n) + " at once"
	case from != "":
		return from + "/" + window + ", default " + number(n)
	}
	return number(n) + "/" + window
}
