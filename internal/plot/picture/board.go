package picture

import (
	"fmt"
	"math"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/plot"
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
	Lines []plot.Line
}

const unitWide, unitHigh = 40., 22. // of the grid, in pixels: the width and the height of a unit

// SVG draws the board.
func (b Board) SVG() []byte {
	c, lines := &plot.Canvas{}, 0
	for _, f := range b.Fields {
		lines = max(lines, f.Y+f.H)
	}
	c.Open(24*unitWide, float64(lines)*unitHigh+6, b.Title, b.Description)
	for _, f := range b.Fields {
		f.draw(c)
	}
	c.Printf("</svg>")
	return c.Bytes()
}

func (f Field) draw(c *plot.Canvas) {
	x, y, w, h := float64(f.X)*unitWide+4, float64(f.Y)*unitHigh+6, float64(f.W)*unitWide-8, float64(f.H)*unitHigh-6
	if f.Kind == "row" {
		c.Text(x+4, y+13, "start", "title", f.Title)
		return
	}
	c.Printf(`<rect class="box" x="%s" y="%s" width="%s" height="%s" rx="4"/>`, plot.Number(x), plot.Number(y), plot.Number(w), plot.Number(h))
	c.Text(x+8, y+17, "start", "bold", f.Title)
	if f.Kind == "stat" {
		values := f.Lines[0].Y
		c.Printf(`<text x="%s" y="%s" text-anchor="middle" font-size="28">%s</text>`, plot.Number(x+w/2), plot.Number(y+h/2+18), plot.Escape(f.value(math.Round(values[len(values)-1]*10)/10)))
		return
	}
	f.curves(c, x+64, x+w-10, y+h-38, y+28)
	f.legend(c, x+8, y+h-8, w-16)
}

// curves draws the lines between these edges, and what time it is: from the first point on.
func (f Field) curves(c *plot.Canvas, left, right, bottom, top float64) {
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
	x, y := plot.Scale{Low: from, High: to, From: left, To: right}, plot.Scale{Low: low, High: high + (high-low)/20, From: bottom, To: top}
	for _, v := range y.Ticks(3) {
		c.Line("grid", left, y.At(v), right, y.At(v))
		c.Text(left-5, y.At(v)+4, "end", "", f.value(v))
	}
	for i, v := range x.Ticks(4) {
		text := plot.Label(v) + " s"
		if i == 0 {
			text = plot.Label(v)
		}
		c.Text(x.At(v), bottom+15, "middle", "", text)
	}
	c.Line("axis", left, bottom, right, bottom)
	for _, l := range f.Lines {
		l.Draw(c, x, y)
	}
}

// legend names as many lines as there is room for.
func (f Field) legend(c *plot.Canvas, x, y, room float64) {
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
		fmt.Fprintf(&b, `<tspan class="name %s">%s  </tspan>`, plot.Class(l.Style), plot.Escape(l.Name))
		room -= float64(len(l.Name)+2) * letter
	}
	c.Printf(`<text x="%s" y="%s" font-size="12" xml:space="preserve">%s</text>`, plot.Number(x), plot.Number(y), b.String())
}

// value writes a number with its unit.
func (f Field) value(v float64) string {
	if f.Unit == "percentunit" {
		return plot.Label(math.Round(v*1000)/10) + "%"
	}
	unit := map[string]string{"reqps": " req/s", "ops": " ops/s", "s": " s", "Bps": " B/s"}[f.Unit]
	if math.Abs(v) >= 10_000 {
		return plot.Label(math.Round(v/100)/10) + "k" + strings.TrimSpace(unit)
	}
	return plot.Label(math.Round(v*1000)/1000) + unit
}
