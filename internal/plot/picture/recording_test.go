package picture

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The lines of a recording come in the order and at the pace in which they were written, whatever
// the pieces, and all of them are seen for a while before it begins again.
func TestRecording(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Recording{Title: "a < b"}
		for i := range 4 {
			fmt.Fprintf(r, "line %d ", i)
			fmt.Fprint(r, "\x1b[1m"[:i])
			fmt.Fprintf(r, "\x1b[31m<%d>\x1b[0m\n", i)
			time.Sleep(10 * time.Second)
		}
		svg := string(r.SVG())
		decoder := xml.NewDecoder(bytes.NewReader([]byte(svg)))
		for {
			if _, err := decoder.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%v in:\n%s", err, svg)
			}
		}
		// 30 seconds in ten, and five more.
		for i, want := range []float64{0, 22.2, 44.4, 66.7} {
			m := regexp.MustCompile(fmt.Sprintf(`@keyframes l%d\{0%%\{opacity:0\}([\d.]+)%%\{opacity:1\}\}#l%d\{animation:l%d 15s`, i, i, i)).FindStringSubmatch(svg)
			if m == nil {
				t.Fatalf("line %d does not come:\n%s", i, svg)
			}
			if at, err := strconv.ParseFloat(m[1], 64); err != nil || at != want {
				t.Errorf("line %d comes at %s %%, want %v", i, m[1], want)
			}
			if text := fmt.Sprintf(`>line %d %s<tspan fill="#ff8a80">&lt;%d&gt;</tspan></text>`, i, "[1m"[:max(0, i-1)], i); !strings.Contains(svg, text) {
				t.Errorf("there is no %s:\n%s", text, svg)
			}
		}
		if !strings.Contains(svg, "prefers-reduced-motion:no-preference") || strings.Count(svg, "<text") != 4 {
			t.Errorf("it moves for everybody, or has other lines:\n%s", svg)
		}
	})
}
