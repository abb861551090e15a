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
	"text/tabwriter"
	"time"
	"unicode"

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
	// several is set where several nodes are asked in turn.
	several bool
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
		return fmt.Errorf("reading the answer: %w", err)
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
	var b page
	if err := json.Indent(&b.Buffer, bytes.TrimSpace(text), "", "  "); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
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
type page struct{ bytes.Buffer }

// line adds a line of text.
func (b *page) line(format string, args ...any) {
	b.WriteString(printable(fmt.Sprintf(format, args...)) + "\n")
}

// table adds rows in columns, the first one being the heads. Columns without a cell are left out.
// Without any other row it adds nothing.
func (b *page) table(rows [][]string) {
	if len(rows) < 2 {
		return
	}
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for i, row := range rows {
		var cells []string
		for i, cell := range row {
			if slices.ContainsFunc(rows[1:], func(r []string) bool { return r[i] != "" }) {
				cells = append(cells, printable(cell))
			}
		}
		line := strings.Join(cells, "\t")
		if i == 0 { // notes without a head stand beside what they are of
			line = strings.TrimRight(line, "\t")
		}
		fmt.Fprintln(w, line)
	}
	w.Flush()
	for line := range strings.Lines(text.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
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
