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
	"unicode"

	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/spelling"
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
	"ago":     func(now, t time.Time) string { return lengthText(now.Sub(t)) + " ago" },
	"lag":     agoText,
	"ahead":   aheadText,
	"percent": percentText,
	"kind":    kindText,
	"notes":   notesOf,
	"some":    func(n *int64) bool { return *n > 0 },
	"who":     whoIn,
	"clip":    spelling.Clip,
	"word":    wordOf,
	"short":   func(id string) string { return id[:min(len(id), keys.ShortDigits)] },
	"rate":    rateText,
	"spark":   sparkOf,
	"until":   untilText,
	"first":   func(all []control.EntryState) []control.EntryState { return all[:min(len(all), maxOverrides)] },
	"more":    func(all []control.EntryState) int { return max(0, len(all)-maxOverrides) },
}).Parse(pageText))

// wordOf writes a name as one word of a shell.
func wordOf(name string) string {
	if name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-.:/", r)
	}) {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

func agoText(seconds float64) string {
	return lengthText(time.Duration(seconds*float64(time.Second))) + " ago"
}

// lengthText writes a length of time in the largest unit that it has two of, as in "14 minutes".
func lengthText(d time.Duration) string {
	for _, u := range []struct {
		name string
		unit time.Duration
	}{{"day", 24 * time.Hour}, {"hour", time.Hour}, {"minute", time.Minute}} {
		if d >= 2*u.unit {
			return counted(int64(d/u.unit), u.name)
		}
	}
	return counted(int64(max(0, d)/time.Second), "second")
}

// aheadText writes how far a clock is ahead, in seconds.
func aheadText(seconds float64) string { return fmt.Sprintf("%.3f s", seconds) }

func rateText(r float64) string {
	if r > 0 && r < 10 {
		return fmt.Sprintf("%.1f", r)
	}
	return fmt.Sprintf("%.0f", r)
}

// untilText says when something ends, in parts that are not broken.
func untilText(now, t time.Time) []string {
	if t.Sub(now) > control.Forever-365*24*time.Hour {
		return []string{"removed"}
	}
	return []string{"in " + lengthText(t.Sub(now)) + ",", t.UTC().Format("2006-01-02 15:04 UTC")}
}

// maxWho is how many banned keys are named beside their zone.
const maxWho = 2

// whoIn are the texts of the keys of a zone that were banned last, where they may be shown.
func whoIn(d pageData, zone string) (all []string) {
	for _, b := range d.Bans.Bans {
		if b.Zone == zone && b.Key != "" && len(all) < maxWho {
			all = append(all, b.Key)
		}
	}
	return all
}

// kindText says by which algorithm and sync_rate a zone counts.
func kindText(z Zone) string {
	return strings.Join(slices.DeleteFunc([]string{z.Algorithm, z.SyncRate}, func(s string) bool { return s == "" }), ", ")
}

// notesOf says what else there is of a zone.
func notesOf(z Zone) (all []string) {
	note := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if z.Unused {
		note("no request yet")
	} else if z.Responses != nil {
		note("counted: %s responses", z.Responses)
	}
	for _, share := range z.Reserve {
		note("reserve %s", percentText(share))
	}
	if z.Reserved != nil && *z.Reserved > 0 {
		note("reserved: %s", counted(*z.Reserved, "key"))
	}
	if r := z.Running; r != nil {
		note("running: %d here, %d on other nodes", r.Here, r.Elsewhere)
	}
	if b := z.Bandwidth; b != nil {
		note("open: %s, sent %s", counted(b.Open, "response"), bytesText(b.Bytes))
	}
	if r := z.busy(); r.Near > 0 {
		note("near the limit: %s/s", rateText(r.Near))
	}
	if z.Keys >= z.MaxKeys/2 {
		note("keys: %d of %d", z.Keys, z.MaxKeys)
	}
	if z.SyncedAgo != nil && *z.SyncedAgo > late {
		note("synced %s", agoText(*z.SyncedAgo))
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

// A spark is a picture of what is known of a zone's last minutes: two paths in 300 by 40.
type spark struct {
	Admitted, Denied string
	// Text says the same in words.
	Text string
}

func sparkOf(steps []Rates) *spark {
	if len(steps) == 0 {
		return nil
	}
	admitted, denied := 0.0, 0.0
	for _, s := range steps {
		admitted, denied = max(admitted, s.Admitted), max(denied, s.Denied)
	}
	most, since := max(admitted, denied), ""
	if len(steps) < kept {
		since = " in " + lengthText(time.Duration(len(steps))*step)
	}
	if len(steps) == 1 {
		steps = append(steps, steps[0]) // a line has two ends
	}
	path := func(of func(Rates) float64) string {
		var b strings.Builder
		for i, s := range steps {
			y := 39.0
			if most > 0 {
				y -= of(s) / most * 37
			}
			draw := 'L'
			if i == 0 {
				draw = 'M'
			}
			fmt.Fprintf(&b, "%c%d %.1f", draw, i*300/(len(steps)-1), y)
		}
		return b.String()
	}
	return &spark{
		Admitted: path(func(r Rates) float64 { return r.Admitted }),
		Denied:   path(func(r Rates) float64 { return r.Denied }),
		Text:     fmt.Sprintf("peaks%s: %s admitted/s, %s denied/s", since, rateText(admitted), rateText(denied)),
	}
}
