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
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
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

// widthOf returns how wide a terminal is, 0 where out is none.
func widthOf(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// takesColors reports whether colors may be written: to a terminal, unless somebody wants none.
func takesColors(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
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

// raw writes JSON with line breaks, as it came otherwise.
func (p printer) raw(text []byte) error {
	b := p.page()
	if err := json.Indent(&b.Buffer, bytes.TrimSpace(text), "", "  "); err != nil {
		return fmt.Errorf("%w: %w", errNoEndpoint, err)
	}
	b.WriteByte('\n')
	return p.print(&b)
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

// gap is between columns, and leastProse the width from which on the last column is wrapped.
const (
	gap        = 2
	leastProse = 24
)

// table adds rows in columns, the first one being the heads. Columns without a cell are left out.
// Without any other row it adds nothing. What is wider than the terminal goes on below in a table
// of the other columns, with those that tell rows apart; in the last column lines are wrapped.
func (b *page) table(rows [][]string) {
	if len(rows) < 2 {
		return
	}
	var columns []column
	for i := range rows[0] {
		if c := newColumn(rows, i); c.filled {
			columns = append(columns, c)
		}
	}
	if n := len(columns); columns[n-1].cells[0][0] == "" && n > 1 {
		// Notes without a head stand beside what they are of.
		columns[n-2].width = columns[n-2].below
	}
	names := columns[:naming(columns)]
	named := -gap
	for _, c := range names {
		named += gap + c.width
	}
	for rest := columns[len(names):]; ; {
		n, width := 0, named
		for n < len(rest) && (b.width == 0 || width+gap+rest[n].width <= b.width) {
			width += gap + rest[n].width
			n++
		}
		if prose := b.width - width - gap; n == len(rest)-1 && prose >= leastProse {
			rest[n].wrap(prose)
			n++
		}
		n = min(max(n, 1), len(rest)) // one that is too wide is not made narrower
		b.columns(names, rest[:n], len(names)+n == len(columns))
		if rest = rest[n:]; len(rest) == 0 {
			return
		}
		b.WriteByte('\n')
	}
}

// naming returns how many of the first columns it takes to tell rows apart: three at most, and one
// where these don't.
func naming(columns []column) int {
	for n := 1; n <= min(3, len(columns)); n++ {
		seen := map[string]bool{}
		for i := range columns[0].cells {
			name := ""
			for _, c := range columns[:n] {
				name += c.cells[i][0] + "\n"
			}
			seen[name] = true
		}
		if len(seen) == len(columns[0].cells) {
			return n
		}
	}
	return 1
}

// A column of a table: its cells, each of one line or several.
type column struct {
	cells  [][]string
	width  int
	below  int // width without the head
	filled bool
}

func newColumn(rows [][]string, i int) column {
	var c column
	for n, row := range rows {
		cell := printable(row[i])
		c.cells = append(c.cells, []string{cell})
		c.width = max(c.width, utf8.RuneCountInString(cell))
		if n > 0 && cell != "" {
			c.below, c.filled = max(c.below, utf8.RuneCountInString(cell)), true
		}
	}
	return c
}

// wrap breaks the lines of cells between words.
func (c *column) wrap(width int) {
	for i, cell := range c.cells {
		var lines []string
		for _, word := range strings.Fields(cell[0]) {
			if n := len(lines) - 1; n >= 0 && utf8.RuneCountInString(lines[n])+1+utf8.RuneCountInString(word) <= width {
				lines[n] += " " + word
			} else {
				lines = append(lines, word)
			}
		}
		c.cells[i] = lines
	}
	c.width = width
}

// columns adds a table of columns that name rows and others: of all, or else without the rows of
// which only the names have cells.
func (b *page) columns(names, others []column, all bool) {
	for i := range names[0].cells {
		lines := 0
		if all {
			lines = 1
		}
		for _, c := range others {
			if len(c.cells[i]) > 0 && c.cells[i][0] != "" {
				lines = max(lines, len(c.cells[i]))
			}
		}
		for l := range lines {
			var text strings.Builder
			for _, c := range slices.Concat(names, others) {
				cell := ""
				if l < len(c.cells[i]) {
					cell = c.cells[i][l]
				}
				fmt.Fprintf(&text, "%-*s", c.width+gap, cell)
			}
			b.WriteString(strings.TrimRight(text.String(), " ") + "\n")
		}
	}
}

// list adds a table, or says that there is none.
func (b *page) list(rows [][]string, none string) {
	if len(rows) == 1 {
		b.line("%s", none)
	}
	b.table(rows)
}

// in says how far a time is ahead, rounded up: what has just been set for 5m ends in 5m. ago says
// how long it is past.
func (p printer) in(t time.Time) string {
	return "in " + config.LengthText(t.Sub(p.now())+time.Second/2-1)
}
func (p printer) ago(t time.Time) string { return config.LengthText(p.now().Sub(t)) + " ago" }

// since says how long a time is past, "" for none.
func (p printer) since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return p.ago(t)
}

// endsAt says when something ends.
func (p printer) endsAt(t time.Time) string {
	if t.Sub(p.now()) > control.Forever-365*24*time.Hour {
		return "never"
	}
	return p.in(t)
}

func percent(share float64) string { return strconv.FormatFloat(share*100, 'f', -1, 64) + "%" }
