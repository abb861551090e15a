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
	Panels []Panel
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
	{"", "M-3.7 0a3.7 3.7 0 1 0 7.4 0a3.7 3.7 0 1 0 -7.4 0z", "#9a9a9a", "#8d949c", 7},
	{"9 5", "M-3.5 -3.5h7v7h-7z", "#b34700", "#ff9d5c", 2},
	{"", "M0 -4.5L4.3 3.5H-4.3z", "#00629b", "#6cc4ff", 2},
	{"2 4", "M0 -5L4 0L0 5L-4 0z", "#8a3a73", "#e59ccb", 2},
	{"12 4 2 4", "M-3.5 -3.5L3.5 3.5M-3.5 3.5L3.5 -3.5", "#00734f", "#4fd6a8", 2},
	{"5 3 1 3 1 3", "M0 -4.5V4.5M-4.5 0H4.5", "#6b5b00", "#e6d25a", 2},
}

// SVG draws the plot.
func (p Plot) SVG() []byte {
	c := &Canvas{}
	height := top + bottom + float64(len(p.Panels))*(field+gap) - gap
	c.Open(width, height, p.Title, p.Description)
	c.Text(left, 23, "start", "title", p.Title)
	low, high := p.rangeX()
	x := Scale{low, high, left, width - right, p.LogX}
	for i, panel := range p.Panels {
		panel.draw(c, x, top+float64(i)*(field+gap), i == len(p.Panels)-1)
	}
	c.Text((left+width-right)/2, height-10, "middle", "", p.X)
	c.Printf("</svg>\n")
	return c.Bytes()
}

// Open begins an SVG with its style sheet and its ground.
func (c *Canvas) Open(width, height float64, title, description string) {
	c.Printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" width="%s" height="%s" role="img" aria-labelledby="title description" font-family="system-ui,sans-serif" font-size="13">`,
		Number(width), Number(height), Number(width), Number(height))
	c.Printf("<title id=\"title\">%s</title><desc id=\"description\">%s</desc>", Escape(title), Escape(description))
	c.Printf("<style>%s</style>", sheet())
	c.Printf(`<rect class="ground" width="%s" height="%s" rx="6"/>`, Number(width), Number(height))
}

// sheet is the style sheet of all plots.
func sheet() string {
	var light, dark strings.Builder
	for i, s := range styles {
		fmt.Fprintf(&light, ".s%d{stroke:%s;fill:%s;stroke-width:%s}", i, s.light, s.light, Number(s.width))
		fmt.Fprintf(&dark, ".s%d{stroke:%s;fill:%s}", i, s.dark, s.dark)
	}
	return ".ground{fill:#fff}.box{fill:#f6f8fa;stroke:#8a929a}.bold{font-weight:600}text{fill:#333}.title{font-size:15px;font-weight:600}.grid{stroke:#e3e3e3}.axis{stroke:#777}.reference{stroke:#555;stroke-dasharray:1 3}" +
		light.String() +
		"@media(prefers-color-scheme:dark){.ground{fill:#161b22}.box{fill:#21262d;stroke:#6e7681}text{fill:#ccd2d8}.grid{stroke:#2b3138}.axis{stroke:#8a929a}.reference{stroke:#b0b6bc}" + dark.String() + "}" +
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
func (panel Panel) draw(c *Canvas, x Scale, at float64, last bool) {
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
	y := Scale{low, high, at + field, at, false}
	for _, v := range y.Ticks(5) {
		if panel.Whole && math.Abs(v-math.Round(v)) > 1e-9 {
			continue
		}
		c.Line("grid", x.From, y.At(v), x.To, y.At(v))
		c.Text(x.From-7, y.At(v)+4, "end", "", Label(v))
	}
	for _, v := range x.Ticks(8) {
		c.Line("grid", x.At(v), y.From, x.At(v), y.To)
		if last {
			c.Text(x.At(v), y.From+17, "middle", "", Label(v))
		}
	}
	c.Line("axis", x.From, y.From, x.To, y.From)
	c.Line("axis", x.From, y.From, x.From, y.To)
	c.Printf(`<text transform="translate(16 %s) rotate(-90)" text-anchor="middle">%s</text>`, Number((y.From+y.To)/2), Escape(panel.Y))
	var names places
	if panel.Reference != 0 {
		c.Line("reference", x.From, y.At(panel.Reference), x.To, y.At(panel.Reference))
		names.add(y.At(panel.Reference), panel.Name, "")
	}
	for _, l := range panel.Lines { // the bands first
		if l.Style == 0 {
			l.Draw(c, x, y)
		}
	}
	for _, l := range panel.Lines {
		if l.Style != 0 {
			l.Draw(c, x, y)
		}
		names.add(min(max(y.At(l.Y[len(l.Y)-1]), y.To), y.From), l.Name, Class(l.Style))
	}
	names.draw(c, x.To)
}

func Class(style int) string { return "s" + strconv.Itoa(style%len(styles)) }

// Draw draws a line, cut off where it leaves the panel.
func (l Line) Draw(c *Canvas, x, y Scale) {
	points := make([][2]float64, len(l.X))
	for i := range l.X {
		points[i] = [2]float64{x.At(l.X[i]), min(max(y.At(l.Y[i]), y.To), y.From)}
	}
	c.Polyline(l.Style, points)
	if l.Marked {
		for _, at := range points {
			c.mark(l.Style, at)
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

func (p places) draw(c *Canvas, x float64) {
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
		c.Printf(`<path class="axis" fill="none" d="M%s %sL%s %s"/>`, Number(x+2), Number(n.at), Number(x+12), Number(n.y))
		c.Text(x+15, n.y+4, "start", strings.TrimSpace("name "+n.class), n.name)
	}
}

// A Scale brings values from Low to High to places from From to To, by ratios where Log is set.
type Scale struct {
	Low, High, From, To float64
	Log                 bool
}

// At is the place of a value.
func (s Scale) At(v float64) float64 {
	low, high := s.Low, s.High
	if s.Log {
		v, low, high = math.Log(v), math.Log(low), math.Log(high)
	}
	if high == low {
		return s.From
	}
	return s.From + (v-low)/(high-low)*(s.To-s.From)
}

// Ticks are round values, about as many as wanted.
func (s Scale) Ticks(wanted float64) (all []float64) {
	if s.Log {
		for decade := math.Pow(10, math.Floor(math.Log10(s.Low))); decade <= s.High; decade *= 10 {
			for _, m := range []float64{1, 2, 5} {
				if v := decade * m; v >= s.Low*.999 && v <= s.High*1.001 {
					all = append(all, v)
				}
			}
		}
		return all
	}
	step := math.Pow(10, math.Floor(math.Log10((s.High-s.Low)/wanted)))
	for _, m := range []float64{1, 2, 5, 10} {
		if (s.High-s.Low)/(step*m) <= wanted {
			step *= m
			break
		}
	}
	for i := math.Ceil(s.Low/step - 1e-9); i*step <= s.High+step*1e-9; i++ {
		all = append(all, i*step)
	}
	return all
}

// Label writes a value beside an axis.
func Label(v float64) string {
	text := strconv.FormatFloat(math.Round(v*1e6)/1e6, 'g', -1, 64)
	if text == "-0" {
		return "0"
	}
	return text
}

// A Canvas is the text of an SVG.
type Canvas struct{ bytes.Buffer }

// Printf adds a line of the text.
func (c *Canvas) Printf(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

// Line draws a straight line.
func (c *Canvas) Line(class string, x1, y1, x2, y2 float64) {
	c.Printf(`<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`, class, Number(x1), Number(y1), Number(x2), Number(y2))
}

// Text writes a text; anchor says where in it the place is: start, middle or end.
func (c *Canvas) Text(x, y float64, anchor, class, s string) {
	c.Printf(`<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`, Number(x), Number(y), anchor, class, Escape(s))
}

// Polyline draws a line of a style through points.
func (c *Canvas) Polyline(style int, points [][2]float64) {
	var texts []string
	for _, at := range points {
		texts = append(texts, Number(at[0])+","+Number(at[1]))
	}
	dash := ""
	if d := styles[style%len(styles)].dash; d != "" {
		dash = ` stroke-dasharray="` + d + `"`
	}
	c.Printf(`<polyline class="%s line"%s points="%s"/>`, Class(style), dash, strings.Join(texts, " "))
}

func (c *Canvas) mark(style int, at [2]float64) {
	c.Printf(`<path class="%s mark" transform="translate(%s %s)" d="%s"/>`, Class(style), Number(at[0]), Number(at[1]), styles[style%len(styles)].mark)
}

// Number writes a place.
func Number(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// Escape writes text as XML has it.
func Escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace(s)
}
