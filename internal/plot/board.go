package plot

import (
	"fmt"
	"math"
	"strings"
)

// A Board is the panels of a dashboard, at their places in a grid of 24 columns, as Grafana lays
// them out.
type Board struct {
	// Title and Description tell those who can't see the board what it shows.
	Title, Description string
	Fields             []Field
}

// A Field is one panel of a board.
type Field struct {
	// X, Y, W and H are in units of the grid.
	X, Y, W, H int
	Title      string
	// Kind is row for a heading, stat for the last value in big letters, else lines over time.
	Kind string
	// Unit is one of Grafana's names, such as reqps.
	Unit  string
	Lines []Line
}

const unitWide, unitHigh = 40., 22. // of the grid, in pixels: the width and the height of a unit

// SVG draws the board.
func (b Board) SVG() []byte {
	c, lines := &canvas{}, 0
	for _, f := range b.Fields {
		lines = max(lines, f.Y+f.H)
	}
	c.open(24*unitWide, float64(lines)*unitHigh+6, b.Title, b.Description)
	for _, f := range b.Fields {
		f.draw(c)
	}
	c.printf("</svg>")
	return c.Bytes()
}

func (f Field) draw(c *canvas) {
	x, y, w, h := float64(f.X)*unitWide+4, float64(f.Y)*unitHigh+6, float64(f.W)*unitWide-8, float64(f.H)*unitHigh-6
	if f.Kind == "row" {
		c.text(x+4, y+13, "start", "title", f.Title)
		return
	}
	c.printf(`<rect class="box" x="%s" y="%s" width="%s" height="%s" rx="4"/>`, number(x), number(y), number(w), number(h))
	c.text(x+8, y+17, "start", "bold", f.Title)
	if f.Kind == "stat" {
		values := f.Lines[0].Y
		c.printf(`<text x="%s" y="%s" text-anchor="middle" font-size="28">%s</text>`, number(x+w/2), number(y+h/2+18), escape(f.value(math.Round(values[len(values)-1]*10)/10)))
		return
	}
	f.curves(c, x+64, x+w-10, y+h-38, y+28)
	f.legend(c, x+8, y+h-8, w-16)
}

// curves draws the lines between these edges, and what time it is: from the first point on.
func (f Field) curves(c *canvas, left, right, bottom, top float64) {
	low, high := 0., 0.
	from, to := math.Inf(1), math.Inf(-1)
	for _, l := range f.Lines {
		for i := range l.X {
			low, high = min(low, l.Y[i]), max(high, l.Y[i])
			from, to = min(from, l.X[i]), max(to, l.X[i])
		}
	}
	if high == low {
		high = 1
	}
	x, y := scale{from, to, left, right, false}, scale{low, high + (high-low)/20, bottom, top, false}
	for _, v := range y.ticks(3) {
		c.line("grid", left, y.at(v), right, y.at(v))
		c.text(left-5, y.at(v)+4, "end", "", f.value(v))
	}
	for i, v := range x.ticks(4) {
		text := label(v) + " s"
		if i == 0 {
			text = label(v)
		}
		c.text(x.at(v), bottom+15, "middle", "", text)
	}
	c.line("axis", left, bottom, right, bottom)
	for _, l := range f.Lines {
		l.draw(c, x, y)
	}
}

// legend names as many lines as there is room for.
func (f Field) legend(c *canvas, x, y, room float64) {
	const letter = 6.6
	var b strings.Builder
	for i, l := range f.Lines {
		more := fmt.Sprintf("and %d more", len(f.Lines)-i)
		need := float64(len(l.Name)+2) * letter
		if i < len(f.Lines)-1 {
			need += float64(len(more)) * letter
		}
		if need > room && i > 0 {
			fmt.Fprintf(&b, "<tspan>%s</tspan>", more)
			break
		}
		fmt.Fprintf(&b, `<tspan class="name %s">%s  </tspan>`, style(l.Style), escape(l.Name))
		room -= float64(len(l.Name)+2) * letter
	}
	c.printf(`<text x="%s" y="%s" font-size="12" xml:space="preserve">%s</text>`, number(x), number(y), b.String())
}

// value writes a number with its unit.
func (f Field) value(v float64) string {
	if f.Unit == "percentunit" {
		return label(math.Round(v*1000)/10) + "%"
	}
	unit := map[string]string{"reqps": " req/s", "ops": " ops/s", "s": " s", "Bps": " B/s"}[f.Unit]
	if math.Abs(v) >= 10_000 {
		return label(math.Round(v/100)/10) + "k" + strings.TrimSpace(unit)
	}
	return label(math.Round(v*1000)/1000) + unit
}
