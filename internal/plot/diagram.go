package plot

import (
	"math"
	"strings"
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
	c := &canvas{}
	c.open(d.Width, d.Height, d.Title, d.Description)
	for _, b := range d.Boxes {
		b.draw(c)
	}
	for _, a := range d.Arrows {
		a.draw(c)
	}
	for _, l := range d.Labels {
		class := ""
		if l.Style != 0 {
			class = "name " + style(l.Style)
		}
		c.text(l.X, l.Y, l.Anchor, class, l.Text)
	}
	c.printf("</svg>")
	return c.Bytes()
}

func (b Box) draw(c *canvas) {
	const line = 18
	c.printf(`<rect class="box" x="%s" y="%s" width="%s" height="%s" rx="6"/>`, number(b.X), number(b.Y), number(b.Width), number(b.Height))
	y := b.Y + b.Height/2 - line*float64(len(b.Lines)-1)/2 + 4.5
	for i, text := range b.Lines {
		class := ""
		if i == 0 {
			class = "bold"
		}
		c.text(b.X+b.Width/2, y+line*float64(i), "middle", class, text)
	}
}

func (a Arrow) draw(c *canvas) {
	s := styles[a.Style%len(styles)]
	dash := ""
	if s.dash != "" {
		dash = ` stroke-dasharray="` + s.dash + `"`
	}
	var points []string
	for _, p := range a.Points {
		points = append(points, number(p[0])+","+number(p[1]))
	}
	c.printf(`<polyline class="%s line"%s points="%s"/>`, style(a.Style), dash, strings.Join(points, " "))
	last := len(a.Points) - 1
	c.head(a.Points[last-1], a.Points[last], a.Style)
	if a.Both {
		c.head(a.Points[1], a.Points[0], a.Style)
	}
}

// head draws the head of an arrow.
func (c *canvas) head(from, to [2]float64, of int) {
	degrees := math.Atan2(to[1]-from[1], to[0]-from[0]) * 180 / math.Pi
	c.printf(`<path class="%s head" transform="translate(%s %s) rotate(%s)" d="M1 0L-9 -5L-6 0L-9 5z"/>`,
		style(of), number(to[0]), number(to[1]), number(degrees))
}

// open begins an SVG with its style sheet and its ground.
func (c *canvas) open(width, height float64, title, description string) {
	c.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" width="%s" height="%s" role="img" aria-labelledby="title description" font-family="system-ui,sans-serif" font-size="13">`,
		number(width), number(height), number(width), number(height))
	c.printf("<title id=\"title\">%s</title><desc id=\"description\">%s</desc>", escape(title), escape(description))
	c.printf("<style>%s</style>", sheet())
	c.printf(`<rect class="ground" width="%s" height="%s" rx="6"/>`, number(width), number(height))
}
