// Package plot draws lines into SVG files that a page can show: readable without colours, by
// dashes, marks and a name at each line, and on light and dark ground.
package plot

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A Plot is one or more panels above each other that share the horizontal axis and the lines'
// styles.
type Plot struct {
	// Title stands above; Description tells those who can't see the plot what it shows.
	Title, Description string
	// X names the horizontal axis. Log spaces it by ratios.
	X      string
	LogX   bool
	Spans  []Span
	Panels []Panel
}

// A Span is a stretch of the horizontal axis that stands out in all panels, with a name.
type Span struct {
	Low, High float64
	Name      string
}

// A Panel is one field of lines.
type Panel struct {
	// Y names the vertical axis, which goes from 0 or Low to the highest point or High.
	Y         string
	Low, High float64
	// Whole is for what is counted: it has no ticks between whole numbers.
	Whole bool
	// Reference is a thin line across at a value, with its name; 0 is none.
	Reference float64
	Name      string
	Lines     []Line
}

// A Line is a row of points.
type Line struct {
	Name string
	X, Y []float64
	// Style numbers dashes, marks and colours; lines of one style in several panels look the same.
	// Marked puts a mark at each point.
	Style  int
	Marked bool
}

const (
	width  = 720.
	left   = 62.
	right  = 168. // room for the names
	top    = 40.
	bottom = 46.
	field  = 230. // the height of a panel
	gap    = 26.
)

// styles are told apart by dash, mark and width; the colours, in the manner of Okabe and Ito, only
// help. The first is a band for what others are compared with: it shows under a line that lies on
// it.
var styles = []struct {
	dash, mark, light, dark string
	width                   float64
}{
	{"", "circle", "#9a9a9a", "#8d949c", 7},
	{"9 5", "square", "#b34700", "#ff9d5c", 2},
	{"", "triangle", "#00629b", "#6cc4ff", 2},
	{"2 4", "diamond", "#8a3a73", "#e59ccb", 2},
	{"12 4 2 4", "cross", "#00734f", "#4fd6a8", 2},
	{"5 3 1 3 1 3", "plus", "#6b5b00", "#e6d25a", 2},
}

// SVG draws the plot.
func (p Plot) SVG() []byte {
	c := &canvas{}
	height := top + bottom + float64(len(p.Panels))*(field+gap) - gap
	c.open(width, height, p.Title, p.Description)
	c.text(left, 23, "start", "title", p.Title)
	low, high := p.rangeX()
	x := scale{low, high, left, width - right, p.LogX}
	for _, span := range p.Spans {
		span.draw(c, x, height)
	}
	for i, panel := range p.Panels {
		panel.draw(c, x, top+float64(i)*(field+gap), i == len(p.Panels)-1)
	}
	c.text((left+width-right)/2, height-10, "middle", "", p.X)
	c.printf("</svg>\n")
	return c.Bytes()
}

// draw draws the span behind the panels, with its name above the first of them.
func (s Span) draw(c *canvas, x scale, height float64) {
	from, to := x.at(s.Low), x.at(s.High)
	c.printf(`<rect class="span" x="%s" y="%s" width="%s" height="%s"/>`, number(from), number(top), number(to-from), number(height-bottom-top))
	c.text((from+to)/2, top+16, "middle", "bold", s.Name)
}

// sheet is the style sheet of all plots.
func sheet() string {
	var light, dark strings.Builder
	for i, s := range styles {
		fmt.Fprintf(&light, ".s%d{stroke:%s;fill:%s;stroke-width:%s}", i, s.light, s.light, number(s.width))
		fmt.Fprintf(&dark, ".s%d{stroke:%s;fill:%s}", i, s.dark, s.dark)
	}
	return ".ground{fill:#fff}.span{fill:#f2ecdd}.box{fill:#f6f8fa;stroke:#8a929a}.bold{font-weight:600}text{fill:#333}.title{font-size:15px;font-weight:600}.grid{stroke:#e3e3e3}.axis{stroke:#777}.reference{stroke:#555;stroke-dasharray:1 3}" +
		light.String() +
		"@media(prefers-color-scheme:dark){.ground{fill:#161b22}.span{fill:#2d2a20}.box{fill:#21262d;stroke:#6e7681}text{fill:#ccd2d8}.grid{stroke:#2b3138}.axis{stroke:#8a929a}.reference{stroke:#b0b6bc}" + dark.String() + "}" +
		".line{fill:none}.head{stroke:none}.name{stroke:none;font-weight:600}.mark{stroke-width:2}.name.s0{fill:#5c5c5c}@media(prefers-color-scheme:dark){.name.s0{fill:#b3bac1}}"
}

func (p Plot) rangeX() (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, panel := range p.Panels {
		for _, l := range panel.Lines {
			for _, x := range l.X {
				low, high = min(low, x), max(high, x)
			}
		}
	}
	return low, high
}

// draw draws a panel whose upper edge is at y.
func (panel Panel) draw(c *canvas, x scale, at float64, last bool) {
	low, high := panel.Low, panel.High
	if high == 0 {
		high = panel.Reference
		for _, l := range panel.Lines {
			for _, y := range l.Y {
				high = max(high, y)
			}
		}
		high += (high - low) / 20
	}
	y := scale{low, high, at + field, at, false}
	for _, v := range y.ticks(5) {
		if panel.Whole && math.Abs(v-math.Round(v)) > 1e-9 {
			continue
		}
		c.line("grid", x.from, y.at(v), x.to, y.at(v))
		c.text(x.from-7, y.at(v)+4, "end", "", label(v))
	}
	for _, v := range x.ticks(8) {
		c.line("grid", x.at(v), y.from, x.at(v), y.to)
		if last {
			c.text(x.at(v), y.from+17, "middle", "", label(v))
		}
	}
	c.line("axis", x.from, y.from, x.to, y.from)
	c.line("axis", x.from, y.from, x.from, y.to)
	c.printf(`<text transform="translate(16 %s) rotate(-90)" text-anchor="middle">%s</text>`, number((y.from+y.to)/2), escape(panel.Y))
	var names places
	if panel.Reference != 0 {
		c.line("reference", x.from, y.at(panel.Reference), x.to, y.at(panel.Reference))
		names.add(y.at(panel.Reference), panel.Name, "")
	}
	for _, l := range panel.Lines { // the bands first
		if l.Style == 0 {
			l.draw(c, x, y)
		}
	}
	for _, l := range panel.Lines {
		if l.Style != 0 {
			l.draw(c, x, y)
		}
		names.add(min(max(y.at(l.Y[len(l.Y)-1]), y.to), y.from), l.Name, style(l.Style))
	}
	names.draw(c, x.to)
}

func style(i int) string { return "s" + strconv.Itoa(i%len(styles)) }

// draw draws a line, cut off where it leaves the panel.
func (l Line) draw(c *canvas, x, y scale) {
	s := styles[l.Style%len(styles)]
	var points strings.Builder
	for i := range l.X {
		fmt.Fprintf(&points, "%s,%s ", number(x.at(l.X[i])), number(min(max(y.at(l.Y[i]), y.to), y.from)))
	}
	dash := ""
	if s.dash != "" {
		dash = ` stroke-dasharray="` + s.dash + `"`
	}
	c.printf(`<polyline class="%s line"%s points="%s"/>`, style(l.Style), dash, strings.TrimSpace(points.String()))
	if l.Marked {
		for i := range l.X {
			c.mark(s.mark, style(l.Style), x.at(l.X[i]), min(max(y.at(l.Y[i]), y.to), y.from))
		}
	}
}

// places are the names of lines beside a panel, moved apart where they would cover each other.
type places []place

type place struct {
	at, y       float64
	name, class string
}

func (p *places) add(y float64, name, class string) { *p = append(*p, place{y, y, name, class}) }

func (p places) draw(c *canvas, x float64) {
	const apart = 16
	for range 200 {
		for i := range p {
			for j := range i {
				over := apart - math.Abs(p[i].y-p[j].y)
				if over <= 0 {
					continue
				}
				if p[i].y < p[j].y || p[i].y == p[j].y && p[i].at < p[j].at {
					over = -over
				}
				p[i].y += over / 2
				p[j].y -= over / 2
			}
		}
	}
	for _, n := range p {
		c.printf(`<path class="axis" fill="none" d="M%s %sL%s %s"/>`, number(x+2), number(n.at), number(x+12), number(n.y))
		c.text(x+15, n.y+4, "start", strings.TrimSpace("name "+n.class), n.name)
	}
}

// A scale brings values to places.
type scale struct {
	low, high, from, to float64
	log                 bool
}

func (s scale) at(v float64) float64 {
	low, high := s.low, s.high
	if s.log {
		v, low, high = math.Log(v), math.Log(low), math.Log(high)
	}
	if high == low {
		return s.from
	}
	return s.from + (v-low)/(high-low)*(s.to-s.from)
}

// ticks are round values, about as many as wanted.
func (s scale) ticks(wanted float64) (all []float64) {
	if s.log {
		for decade := math.Pow(10, math.Floor(math.Log10(s.low))); decade <= s.high; decade *= 10 {
			for _, m := range []float64{1, 2, 5} {
				if v := decade * m; v >= s.low*.999 && v <= s.high*1.001 {
					all = append(all, v)
				}
			}
		}
		return all
	}
	step := math.Pow(10, math.Floor(math.Log10((s.high-s.low)/wanted)))
	for _, m := range []float64{1, 2, 5, 10} {
		if (s.high-s.low)/(step*m) <= wanted {
			step *= m
			break
		}
	}
	for i := math.Ceil(s.low/step - 1e-9); i*step <= s.high+step*1e-9; i++ {
		all = append(all, i*step)
	}
	return all
}

func label(v float64) string {
	text := strconv.FormatFloat(math.Round(v*1e6)/1e6, 'g', -1, 64)
	if text == "-0" {
		return "0"
	}
	return text
}

// A canvas is the text of an SVG.
type canvas struct{ bytes.Buffer }

func (c *canvas) printf(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	c.printf(`<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`, class, number(x1), number(y1), number(x2), number(y2))
}

func (c *canvas) text(x, y float64, anchor, class, s string) {
	c.printf(`<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`, number(x), number(y), anchor, class, escape(s))
}

func (c *canvas) mark(shape, class string, x, y float64) {
	paths := map[string]string{
		"square":   "M-3.5 -3.5h7v7h-7z",
		"triangle": "M0 -4.5L4.3 3.5H-4.3z",
		"diamond":  "M0 -5L4 0L0 5L-4 0z",
		"cross":    "M-3.5 -3.5L3.5 3.5M-3.5 3.5L3.5 -3.5",
		"plus":     "M0 -4.5V4.5M-4.5 0H4.5",
		"circle":   "M-3.7 0a3.7 3.7 0 1 0 7.4 0a3.7 3.7 0 1 0 -7.4 0z",
	}
	c.printf(`<path class="%s mark" transform="translate(%s %s)" d="%s"/>`, class, number(x), number(y), paths[shape])
}

func number(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace(s)
}
