package picture

import (
	"bytes"
	"encoding/xml"
	"io"
	"strings"
	"testing"
)

func TestDiagramsAreWellFormed(t *testing.T) {
	d := Diagram{
		Title: "a < b", Description: "two boxes", Width: 200, Height: 100,
		Boxes:  []Box{{X: 0, Y: 0, Width: 50, Height: 50, Lines: []string{"one", "more"}}, {X: 100, Y: 0, Width: 50, Height: 50, Lines: []string{"two"}}},
		Arrows: []Arrow{{Points: [][2]float64{{50, 20}, {100, 20}}, Style: 1, Both: true}, {Points: [][2]float64{{50, 40}, {75, 40}, {100, 40}}, Style: 2}},
		Labels: []Label{{X: 75, Y: 16, Anchor: "middle", Style: 1, Text: "both & ways"}, {X: 75, Y: 36, Anchor: "start", Text: "one way"}},
	}
	svg := d.SVG()
	decoder := xml.NewDecoder(bytes.NewReader(svg))
	for {
		if _, err := decoder.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%v in:\n%s", err, svg)
		}
	}
	text := string(svg)
	for _, want := range []string{">one<", ">more<", ">both &amp; ways<", "rotate(180)", "rotate(0)", "stroke-dasharray", `role="img"`, "prefers-color-scheme:dark"} {
		if !strings.Contains(text, want) {
			t.Errorf("the diagram has no %s", want)
		}
	}
	if heads := strings.Count(text, `head" transform`); heads != 3 {
		t.Errorf("three heads of two arrows are drawn as %d", heads)
	}
}
