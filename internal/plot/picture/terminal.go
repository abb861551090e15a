package picture

import (
	"html"
	"regexp"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/plot"
)

const letter, line = 8.43, 20 // of a terminal in 14 pixels: the width of a letter, and of a line

// Terminal draws a command and what it printed, in SVG; further commands begin with "$ ". Lines are
// stretched to the width that their letters have, as fonts differ in that.
func Terminal(command, printed string) []byte {
	lines := append([]string{"$ " + command}, strings.Split(strings.TrimSpace(printed), "\n")...)
	widest := 0
	for _, l := range lines {
		widest = max(widest, len([]rune(l)))
	}
	c, width, height := &plot.Canvas{}, float64(widest)*letter+40, len(lines)*line+30
	c.Printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" role="img" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14">`, width, height, width, height)
	c.Printf("<title>%s</title>", html.EscapeString(command))
	c.Printf(`<rect width="%.0f" height="%d" rx="8" fill="#1b222b"/>`, width, height)
	for i, l := range lines {
		color := "#dfe6ee"
		if strings.HasPrefix(l, "$ ") {
			color = "#8fc7ff"
		}
		c.Printf(`<text x="20" y="%d" fill="%s" textLength="%.1f" xml:space="preserve">%s</text>`,
			i*line+30, color, max(letter, float64(len([]rune(l)))*letter), html.EscapeString(l))
	}
	c.Printf("</svg>")
	return c.Bytes()
}

var drawnLine = regexp.MustCompile(`(?m)<text [^>]*>(.*)</text>$`)

// LinesOf reads the lines of a picture of a terminal.
func LinesOf(drawn []byte) (all []string) {
	for _, m := range drawnLine.FindAllSubmatch(drawn, -1) {
		all = append(all, html.UnescapeString(string(m[1])))
	}
	return all
}
