package picture

import (
	"fmt"
	"io"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/plot"
)

// A Recording notes what is written to a terminal, and when. It passes nothing on.
type Recording struct {
	// Title says what it shows.
	Title string

	began time.Time
	text  string
	lines []recorded
}

type recorded struct {
	at   time.Duration
	text string
}

var _ io.Writer = (*Recording)(nil)

// Write notes the lines that are complete.
func (r *Recording) Write(text []byte) (int, error) {
	if r.began.IsZero() {
		r.began = time.Now()
	}
	r.text += string(text)
	for {
		line, rest, ok := strings.Cut(r.text, "\n")
		if !ok {
			return len(text), nil
		}
		r.text = rest
		r.lines = append(r.lines, recorded{time.Since(r.began), line})
	}
}

const (
	cell, row = 8.4, 18 // of a character in 14 pixels
	pace      = 3       // how many seconds pass in one
	pause     = 5.      // seconds that the whole is seen
)

// painted are the styles of terminals.
var painted = map[string]string{"1": ` font-weight="bold"`, "2": ` fill="#8b97a5"`, "31": ` fill="#ff8a80"`, "33": ` fill="#e6d25a"`, "36": ` fill="#6cc4ff"`}

var escapes = regexp.MustCompile(`\x1b\[(\d+)m(.*?)\x1b\[0m`)

// SVG draws the recording: its lines come one after the other, three times as fast as they did, and
// then all of it again. Who wants no motion sees all of them at once.
func (r *Recording) SVG() []byte {
	c, widest, last := &plot.Canvas{}, 0, 0.
	for _, l := range r.lines {
		widest, last = max(widest, len([]rune(escapes.ReplaceAllString(l.text, "$2")))), l.at.Seconds()/pace
	}
	width, height := float64(widest)*cell+40, len(r.lines)*row+26
	c.Printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %d" width="%s" height="%d" role="img" aria-labelledby="title" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14">`,
		plot.Number(width), height, plot.Number(width), height)
	c.Printf(`<title id="title">%s</title>`, plot.Escape(r.Title))
	var style strings.Builder
	all := last + pause
	for i, l := range r.lines {
		at := math.Round(l.at.Seconds()/pace/all*1e4) / 100
		fmt.Fprintf(&style, "@keyframes l%d{0%%{opacity:0}%s%%{opacity:1}}#l%d{animation:l%d %ss step-end infinite}", i, plot.Number(at), i, i, plot.Number(all))
	}
	c.Printf(`<style>@media(prefers-reduced-motion:no-preference){%s}</style>`, style.String())
	c.Printf(`<rect width="%s" height="%d" rx="8" fill="#1b222b"/>`, plot.Number(width), height)
	for i, l := range r.lines {
		text := escapes.ReplaceAllStringFunc(plot.Escape(l.text), func(s string) string {
			m := escapes.FindStringSubmatch(s)
			return "<tspan" + painted[m[1]] + ">" + m[2] + "</tspan>"
		})
		text = strings.ReplaceAll(text, "\x1b", "") // XML has no such character
		plain := len([]rune(escapes.ReplaceAllString(l.text, "$2")))
		c.Printf(`<text id="l%d" x="20" y="%d" fill="#dfe6ee" textLength="%s" xml:space="preserve">%s</text>`, i, i*row+26, plot.Number(max(1, float64(plain))*cell), text)
	}
	c.Printf("</svg>")
	return c.Bytes()
}
