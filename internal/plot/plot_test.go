package plot

import (
	"bytes"
	"encoding/xml"
	"io"
	"math"
	"strings"
	"testing"
)

func some() Plot {
	return Plot{
		Title: `a < b & "c"`, Description: "two lines", X: "x", LogX: true,
		Panels: []Panel{{Y: "y", Reference: 1, Name: "one", Lines: []Line{
			{Name: "first", X: []float64{1, 10, 100}, Y: []float64{0, 1, 2}, Style: 1, Marked: true},
			{Name: "second", X: []float64{1, 10, 100}, Y: []float64{2, 2, 2}, Style: 2},
		}}},
	}
}

func TestPlotsAreWellFormed(t *testing.T) {
	svg := some().SVG()
	decoder := xml.NewDecoder(bytes.NewReader(svg))
	for {
		if _, err := decoder.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%v in:\n%s", err, svg)
		}
	}
	if !bytes.Equal(svg, some().SVG()) {
		t.Error("the same plot is drawn in two ways")
	}
}

// Lines are named where they end, dashed apart, and shown to those who can't see them.
func TestPlotsNeedNoColours(t *testing.T) {
	svg := string(some().SVG())
	for _, want := range []string{">first<", ">second<", ">one<", "stroke-dasharray", `role="img"`, "<desc", "prefers-color-scheme:dark"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the plot has no %s", want)
		}
	}
	for i, a := range styles {
		for _, b := range styles[:i] {
			if a.dash == b.dash && a.width == b.width && a.mark == b.mark {
				t.Errorf("styles %+v and %+v look the same without colours", a, b)
			}
		}
	}
}

func TestScales(t *testing.T) {
	s := Scale{1, 100, 0, 200, true}
	if got := s.At(10); math.Abs(got-100) > 1e-9 {
		t.Errorf("10 stands at %g of 200 between 1 and 100, by ratios, want 100", got)
	}
	for _, c := range []struct {
		s    Scale
		want []string
	}{
		{s, []string{"1", "2", "5", "10", "20", "50", "100"}},
		{Scale{0, 2, 0, 1, false}, []string{"0", "0.5", "1", "1.5", "2"}},
		{Scale{.9, 1.3, 0, 1, false}, []string{"0.9", "1", "1.1", "1.2", "1.3"}},
	} {
		var got []string
		for _, v := range c.s.Ticks(5) {
			got = append(got, Label(v))
		}
		if strings.Join(got, " ") != strings.Join(c.want, " ") {
			t.Errorf("ticks from %g to %g: %q, want %q", c.s.Low, c.s.High, got, c.want)
		}
	}
}

// What is counted has no halves.
func TestWholeTicks(t *testing.T) {
	p := Plot{Panels: []Panel{{Lines: []Line{{X: []float64{1, 9}, Y: []float64{0, 2}}}}}}
	for whole, want := range map[bool]int{false: 1, true: 0} {
		p.Panels[0].Whole = whole
		svg := string(p.SVG())
		if n := strings.Count(svg, ">0.5<"); n != want || !strings.Contains(svg, ">1<") || strings.Count(svg, ">2<") < 2 {
			t.Errorf("whole %v: %d ticks at 0.5, want %d:\n%s", whole, n, want, svg)
		}
	}
}

func TestNamesDoNotCoverEachOther(t *testing.T) {
	p := some()
	for i := range p.Panels[0].Lines {
		p.Panels[0].Lines[i].Y = []float64{1, 1, 1}
	}
	var ys []string
	for _, line := range strings.Split(string(p.SVG()), "\n") {
		if strings.Contains(line, `class="name`) {
			_, rest, _ := strings.Cut(line, `y="`)
			y, _, _ := strings.Cut(rest, `"`)
			ys = append(ys, y)
		}
	}
	if len(ys) != 3 || ys[0] == ys[1] || ys[1] == ys[2] || ys[0] == ys[2] {
		t.Errorf("three names that belong at one height stand at %q", ys)
	}
}
