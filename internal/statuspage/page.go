package statuspage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/control"
)

var (
	//go:embed page.html
	pageText string
	//go:embed page.css
	styleText string
	//go:embed refresh.js
	script []byte
)

// style is part of the page, so that one request paints it. The policy knows it by its hash.
var style = template.CSS(styleText)

// policy allows the page its own style and script, and nothing else.
var policy = func() string {
	sum := sha256.Sum256([]byte(styleText))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; script-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}()

type pageData struct {
	*View
	Style template.CSS
}

// maxOverrides is how many overrides are shown as HTML.
const maxOverrides = 50

var html = template.Must(template.New("page").Funcs(template.FuncMap{
	"ago":     agoText,
	"percent": percentText,
	"kind":    kindText,
	"notes":   notesOf,
	"some":    func(n *int64) bool { return *n > 0 },
	"keys":    func(n *int64) string { return counted(*n, "key") },
	"rate":    rateText,
	"spark":   sparkOf,
	"until":   untilText,
	"first":   func(all []control.EntryState) []control.EntryState { return all[:min(len(all), maxOverrides)] },
	"more":    func(all []control.EntryState) int { return max(0, len(all)-maxOverrides) },
}).Parse(pageText))

func agoText(seconds float64) string {
	return time.Duration(max(0, seconds)*float64(time.Second)).Round(time.Second).String() + " ago"
}

func rateText(r float64) string {
	if r > 0 && r < 10 {
		return fmt.Sprintf("%.1f", r)
	}
	return fmt.Sprintf("%.0f", r)
}

func untilText(t time.Time) string {
	if time.Until(t) > control.Forever-365*24*time.Hour {
		return "removed"
	}
	return t.UTC().Format("2006-01-02 15:04 UTC")
}

// kindText says by which algorithm and sync_rate a zone counts.
func kindText(z Zone) string {
	return strings.Join(slices.DeleteFunc([]string{z.Algorithm, z.SyncRate}, func(s string) bool { return s == "" }), ", ")
}

// notesOf says what else there is of a zone.
func notesOf(z Zone) (all []string) {
	note := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for _, share := range z.Reserve {
		note("reserve %s", percentText(share))
	}
	if z.Reserved != nil {
		note("reserved: %s", counted(*z.Reserved, "key"))
	}
	if r := z.Running; r != nil {
		note("running: %d here, %d on other nodes", r.Here, r.Elsewhere)
	}
	if b := z.Bandwidth; b != nil {
		note("open: %s, sent %s", counted(b.Open, "response"), bytesText(b.Bytes))
	}
	return all
}

// counted writes how many there are of something.
func counted(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func bytesText(n int64) string {
	size, unit := float64(n), 0
	for size >= 1024 && unit < 4 {
		size, unit = size/1024, unit+1
	}
	return fmt.Sprintf("%.3g %s", size, []string{"B", "KiB", "MiB", "GiB", "TiB"}[unit])
}

func percentText(share float64) string { return fmt.Sprintf("%.4g%%", share*100) }

// A spark is a small picture of a zone's last minutes: two paths in 120 by 24.
type spark struct {
	Admitted, Denied string
	// Text says the same in words.
	Text string
}

func sparkOf(steps []Rates) *spark {
	if len(steps) == 0 {
		return nil
	}
	most, denied := 0.0, 0.0
	for _, s := range steps {
		most, denied = max(most, s.Admitted, s.Denied), max(denied, s.Denied)
	}
	path := func(of func(Rates) float64) string {
		var b strings.Builder
		for i, s := range steps {
			y := 23.0
			if most > 0 {
				y -= of(s) / most * 22
			}
			draw := 'L'
			if i == 0 {
				draw = 'M'
			}
			fmt.Fprintf(&b, "%c%d %.1f", draw, (kept-len(steps)+i)*120/kept, y)
		}
		return b.String()
	}
	return &spark{
		Admitted: path(func(r Rates) float64 { return r.Admitted }),
		Denied:   path(func(r Rates) float64 { return r.Denied }),
		Text:     fmt.Sprintf("at most %s a second, %s of them denied", rateText(most), rateText(denied)),
	}
}
