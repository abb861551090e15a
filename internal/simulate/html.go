package simulate

import (
	"bytes"
	_ "embed" // for the page
	"encoding/base64"
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/plot"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

//go:embed report.html
var pageText string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"when": func(t time.Time) string { return t.Format("2006-01-02 15:04:05") },
	"all":  func(z Zone) int64 { return z.Denied + z.WouldDeny },
	// What a log holds could show as something else, even as text.
	"plain": reqkey.Printable, "quoted": quoted, "share": ShareText, "answered": AnsweredText, "rule": Window.Rule,
	"overTime": overTime, "most": Window.mostPlot, "candidates": Window.candidatesPlot,
}).Parse(pageText))

// quoted is a whole sentence in printable ASCII.
func quoted(text string) string {
	text = strconv.QuoteToASCII(text)
	return strings.ReplaceAll(text[1:len(text)-1], `\"`, `"`)
}

// HTML returns the report as one page that needs nothing else.
func (r *Report) HTML() ([]byte, error) {
	var b bytes.Buffer
	err := page.Execute(&b, r)
	return b.Bytes(), err
}

// ShareText writes a share in percent with three digits.
func ShareText(share float64) string { return strconv.FormatFloat(share*100, 'g', 3, 64) + "%" }

// AnsweredText says what denied requests had been answered.
func AnsweredText(answered Answers) string {
	var parts []string
	for _, class := range []string{"2xx", "3xx", "4xx", "5xx", "1xx", "unknown"} {
		if n := answered[class]; n > 0 {
			text := fmt.Sprintf("%s: %d", class, n)
			if class == "2xx" {
				text += " (served, to people or to programs)"
			}
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, ", ")
}

// Rule says by which rule a candidate is suggested, or why none is.
func (w Window) Rule() string {
	switch {
	case w.NotFollowed > 0:
		return fmt.Sprintf("%d clients are left out here, as too many come near these limits; so none is suggested.", w.NotFollowed)
	case w.Suggested == 0:
		return "None is suggested: each denies more than one client in 1000."
	}
	text := "Suggested is the lowest that denies at most one client in 1000 (with 20 to 1000 clients: at most 1; with fewer: 0). Who got nothing but 4xx, beyond the limit, is not looked at."
	i := slices.IndexFunc(w.Candidates, func(c Candidate) bool { return c.Limit == w.Suggested })
	for ; i > 0; i-- {
		if c := w.Candidates[i-1]; len(c.Answered) > 0 {
			return text + fmt.Sprintf(" %d/%s would deny requests that had been answered with %s.", c.Limit, w.Window, AnsweredText(c.Answered))
		}
	}
	return text
}

// A picture is a plot as an image of a page.
type picture struct {
	Alt    string
	Source template.URL
}

func pictureOf(p plot.Plot) *picture {
	return &picture{p.Description, template.URL("data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString(p.SVG()))}
}

// overTime draws when requests came and were denied, nil where it was all at once.
func overTime(z Zone) *picture {
	t := z.Times
	if len(t.Requests) < 2 {
		return nil
	}
	unit, name := 60.0, "minutes"
	if total := t.Seconds * float64(len(t.Requests)); total > 2*86400 {
		unit, name = 86400, "days"
	} else if total > 3*3600 {
		unit, name = 3600, "hours"
	}
	name += t.Start.Format(" from 2006-01-02 15:04:05 UTC")
	came, denied := plot.Line{Name: "all requests", Style: 2}, plot.Line{Name: "denied", Style: 1}
	high, n := 0.0, len(t.Requests)
	if n > 10 {
		n-- // the log ends within the last stretch, which would look like a fall
	}
	for i := range n {
		x := (float64(i) + .5) * t.Seconds / unit
		came.X, came.Y = append(came.X, x), append(came.Y, float64(t.Requests[i])/t.Seconds)
		denied.X, denied.Y = append(denied.X, x), append(denied.Y, float64(t.Denied[i])/t.Seconds)
		high = max(high, came.Y[i])
	}
	return pictureOf(plot.Plot{
		Title:       "Requests a second",
		Description: fmt.Sprintf("Over the time of the log: all requests a second, at most %.3g, and how many of them are denied.", high),
		X:           name,
		Panels:      []plot.Panel{{Y: "requests/s", High: high * 1.05, Lines: []plot.Line{came, denied}}},
	})
}

// mostPlot draws how many clients sent how much at most, nil where all that sent anything sent the
// same. A logarithmic axis has no 0: the line begins above it, at a share that has those who sent
// nothing.
func (w Window) mostPlot() *picture {
	n := len(w.mosts)
	first, _ := slices.BinarySearch(w.mosts, 1)
	if first == n || w.mosts[first] == w.mosts[n-1] {
		return nil
	}
	line := plot.Line{Name: "clients", Style: 2}
	for i := first; i < n; {
		v := w.mosts[i]
		for i < n && w.mosts[i] == v {
			i++
		}
		line.X, line.Y = append(line.X, float64(v)), append(line.Y, 100*float64(i)/float64(n))
	}
	p := plot.Plot{
		Title: "The most that clients sent in any " + w.Window, X: "requests in any " + w.Window, LogX: true,
		Description: fmt.Sprintf("The share of the clients that sent at most a number of requests in any %s: half of them %d, 99.9 %% of them %d, all of them %d.",
			w.Window, w.Most.P50, w.Most.P999, w.Most.Max),
		Panels: []plot.Panel{{Y: "% of the clients", High: 105, Lines: []plot.Line{line}}},
	}
	number, _, _ := strings.Cut(w.Limit, "/")
	if at, err := strconv.ParseFloat(number, 64); err == nil && at >= 1 {
		p.Panels[0].Lines = append(p.Panels[0].Lines, plot.Line{Name: "the limit", Style: 1, X: []float64{at, at}, Y: []float64{0, 100}})
	}
	return pictureOf(p)
}

// candidatesPlot draws whom other limits deny, nil where none touches anybody.
func (w Window) candidatesPlot() *picture {
	touches := slices.ContainsFunc(w.Candidates, func(c Candidate) bool { return c.Clients > 0 })
	if len(w.Candidates) < 2 || !touches {
		return nil
	}
	clients, requests := plot.Line{Name: "clients", Style: 2, Marked: true}, plot.Line{Name: "requests", Style: 1, Marked: true}
	for _, c := range w.Candidates {
		clients.X, clients.Y = append(clients.X, float64(c.Limit)), append(clients.Y, float64(c.Clients))
		requests.X, requests.Y = append(requests.X, float64(c.Limit)), append(requests.Y, float64(c.Requests))
	}
	first, denied := w.Candidates[0], "requests denied"
	if first.Requests >= 10_000 {
		denied = "thousand requests denied"
		for i := range requests.Y {
			requests.Y[i] /= 1000
		}
	}
	return pictureOf(plot.Plot{
		Title: "What other limits in " + w.Window + " would deny", X: "requests in " + w.Window, LogX: true,
		Description: fmt.Sprintf("Clients and requests that limits from %d to %d in %s deny: %d clients and %d requests by the lowest.",
			first.Limit, w.Candidates[len(w.Candidates)-1].Limit, w.Window, first.Clients, first.Requests),
		Panels: []plot.Panel{{Y: "clients denied", Whole: true, Lines: []plot.Line{clients}}, {Y: denied, Whole: true, Lines: []plot.Line{requests}}},
	})
}
