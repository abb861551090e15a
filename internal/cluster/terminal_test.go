package cluster_test

import (
	"fmt"
	"html"
	"regexp"
	"strings"
)

const cell, row = 8.43, 20 // of a letter of 14 pixels, and of a line

// terminal draws a command and what it printed, in SVG. Columns are placed by themselves, as fonts
// differ in how wide they are.
func terminal(command, printed string) []byte {
	lines := append([]string{"$ " + command}, strings.Split(strings.TrimSpace(printed), "\n")...)
	widest := 0
	for _, line := range lines {
		widest = max(widest, len([]rune(line)))
	}
	width, height := float64(widest)*cell+40, len(lines)*row+30
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" role="img" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString(command))
	fmt.Fprintf(&b, `<rect width="%.0f" height="%d" rx="8" fill="#1b222b"/>`+"\n", width, height)
	for i, line := range lines {
		color := "#dfe6ee"
		if i == 0 {
			color = "#8fc7ff"
		}
		fmt.Fprintf(&b, `<text x="20" y="%d" fill="%s" textLength="%.1f" xml:space="preserve">%s</text>`+"\n",
			i*row+30, color, max(cell, float64(len([]rune(line)))*cell), html.EscapeString(line))
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// linesOf reads the lines of such a picture.
func linesOf(drawn []byte) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)<text [^>]*>(.*)</text>$`).FindAllSubmatch(drawn, -1) {
		all = append(all, html.UnescapeString(string(m[1])))
	}
	return all
}
