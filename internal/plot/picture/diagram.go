// Package picture draws what only pages of the documentation show, in the manner of plots:
// diagrams, dashboards and terminals.
package picture

import (
	"math"

	"github.com/caddy-tide/ratelimit/internal/plot"
)

// A Diagram is boxes with arrows between them, in the same manner as plots. Places are points from
// its upper left corner.
type Diagram struct {
	// Title and Description tell those who can't see the diagram what it shows.
	Title, Description string
	Width, Height      float64
	Boxes              []Box
	Arrows             []Arrow
	Labels             []Label
}

// A Box has lines of text in its middle, the first one bold.
type Box struct {
	X, Y, Width, Height float64
	Lines               []string
}

// An Arrow goes through points to the last of them. Both puts a head at its beginning as well.
// Style is one of the styles of lines.
type Arrow struct {
	Points [][2]float64
	Style  int
	Both   bool
}

// A Label is text at a place, which is its beginning, its middle or its end by Anchor: start,
// middle or end. Style is that of the arrow which it names, 0 that of all text.
type Label struct {
	X, Y   float64
	Anchor string
	Style  int
	Text   string
}

// SVG draws the diagram.
func (d Diagram) SVG() []byte {
	c := &plot.Canvas{}
	c.Open(d.Width, d.Height, d.Title, d.Description)
	for _, b := range d.Boxes {
		b.draw(c)
	}
	for _, a := range d.Arrows {
		a.draw(c)
	}
	for _, l := range d.Labels {
		class := ""
		if l.Style != 0 {
			class = "name " + plot.Class(l.Style)
		}
		c.Text(l.X, l.Y, l.Anchor, class, l.Text)
	}
	c.Printf("</svg>")
	return c.Bytes()
}

func (b Box) draw(c *plot.Canvas) {
	const line = 18
	c.Printf(`<rect class="box" x="%s" y="%s" width="%s" height="%s" rx="6"/>`, plot.Number(b.X), plot.Number(b.Y), plot.Number(b.Width), plot.Number(b.Height))
	y := b.Y + b.Height/2 - line*float64(len(b.Lines)-1)/2 + 4.5
	for i, text := range b.Lines {
		class := ""
		if i == 0 {
			class = "bold"
		}
		c.Text(b.X+b.Width/2, y+line*float64(i), "middle", class, text)
	}
}

func (a Arrow) draw(c *plot.Canvas) {
	c.Polyline(a.Style, a.Points)
	last := len(a.Points) - 1
	head(c, a.Points[last-1], a.Points[last], a.Style)
	if a.Both {
		head(c, a.Points[1], a.Points[0], a.Style)
	}
}

// head draws the head of an arrow.
func head(c *plot.Canvas, from, to [2]float64, of int) {
	degrees := math.Atan2(to[1]-from[1], to[0]-from[0]) * 180 / math.Pi
	c.Printf(`<path class="%s head" transform="translate(%s %s) rotate(%s)" d="M1 0L-9 -5L-6 0L-9 5z"/>`,
		plot.Class(of), plot.Number(to[0]), plot.Number(to[1]), plot.Number(degrees))
}
