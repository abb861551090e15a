package picture

import (
	"bytes"
	"encoding/xml"
	"io"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/plot"
)

// A board shows headings, last values with their units, and lines with as many of their names as
// there is room for.
func TestBoards(t *testing.T) {
	line := func(name string) plot.Line {
		return plot.Line{Name: name, X: []float64{0, 10}, Y: []float64{1, 2}, Style: 1}
	}
	svg := Board{Title: "a & b", Fields: []Field{
		{W: 24, H: 1, Title: "Requests", Kind: "row"},
		{Y: 1, W: 6, H: 4, Title: "Denied <now>", Kind: "stat", Unit: "reqps", Lines: []plot.Line{line("")}},
		{Y: 5, W: 8, H: 8, Title: "Share", Unit: "percentunit", Lines: []plot.Line{
			line("first"), line("second"), line(strings.Repeat("third", 9)), line("fourth"),
		}},
	}}.SVG()
	for decoder := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := decoder.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%v in:\n%s", err, svg)
		}
	}
	for _, want := range []string{">Requests<", ">Denied &lt;now&gt;<", ">2 req/s<", ">200%<", ">first  <", ">second  <", ">and 2 more<"} {
		if strings.Count(string(svg), want) != 1 {
			t.Errorf("the board has %q %d times, want once, in:\n%s", want, strings.Count(string(svg), want), svg)
		}
	}
	for unit, want := range map[string]string{"short": "12.3k", "Bps": "12.3kB/s", "s": "12.3k s"} {
		if got := (Field{Unit: unit}).value(12_345); strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
			t.Errorf("12345 of the unit %s is %q, want %q", unit, got, want)
		}
	}
}
