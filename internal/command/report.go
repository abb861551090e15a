package command

import (
	"fmt"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/simulate"
)

// report prints what came of a simulation; configured is set where it is one of a configuration.
func (p printer) report(r *simulate.Report, configured bool) error {
	b := p.page()
	const layout = "2006-01-02 15:04:05"
	b.line("%d requests of %s clients, from %s to %s UTC (%s).", r.Requests, clientsText(r.Clients), r.From.Format(layout), r.To.Format(layout), config.LengthText(r.To.Sub(r.From)))
	if r.Nodes > 1 {
		b.line("%d nodes share them; the tables of limits are of all nodes together.", r.Nodes)
	}
	if r.Read.Damaged > 0 || r.Read.Late > 0 {
		b.line("Of %d lines %d are damaged and %d late; these are left out.", r.Read.Lines, r.Read.Damaged, r.Read.Late)
	}
	troubles := [][]string{{"  FILE", "LINE", "WHY"}}
	for _, t := range r.Read.Troubles {
		troubles = append(troubles, []string{"  " + t.File, number(t.Line), t.Why})
	}
	b.table(troubles)
	for i := range r.Zones {
		b.zone(&r.Zones[i])
	}
	if len(r.Warnings) > 0 {
		b.line("")
	}
	for _, w := range r.Warnings {
		b.line("Warning: %s.", w)
	}
	b.line("")
	b.line("What no log tells:")
	for _, text := range r.Bias {
		b.line("- %s", text)
	}
	if configured {
		b.line("")
		b.coverage(r)
	}
	return p.print(&b)
}

// coverage adds how many requests come to each zone, and what no zone counts that looks as if one
// should.
func (b *page) coverage(r *simulate.Report) {
	zones := [][]string{{"ZONE", "REQUESTS", "OF ALL"}}
	for _, z := range r.Zones {
		zones = append(zones, []string{z.Zone, number(z.Requests), simulate.ShareText(float64(z.Requests) / float64(r.Requests))})
	}
	b.table(zones)
	paths := [][]string{{"COUNTED BY NO ZONE", "ANSWERED", "REQUESTS"}}
	for _, u := range r.Uncounted {
		paths = append(paths, []string{u.Path, number(int64(u.Status)), number(u.Requests)})
	}
	b.table(paths)
}

// zone adds what a zone would have done.
func (b *page) zone(z *simulate.Zone) {
	b.line("")
	b.line("Zone %s: %s by %s, %s", z.Zone, z.Limits, z.Key, z.Algorithm)
	if z.Requests == 0 {
		b.line("No request comes to it.")
		return
	}
	if len(z.With) > 0 {
		b.line("With %s.", strings.Join(z.With, ", "))
	}
	would := ""
	if z.WouldDeny > 0 {
		would = fmt.Sprintf(", %d of them only in shadow mode (enforce %s)", z.WouldDeny, z.Enforced)
	}
	if z.Banned > 0 {
		would += fmt.Sprintf("; %d of them during a ban", z.Banned)
	}
	b.line("Denied: %d of %d requests (%s), of %s of %s clients%s.", z.Denied+z.WouldDeny, z.Requests, simulate.ShareText(z.Share), clientsText(z.DeniedClients), clientsText(z.Clients), would)
	if len(z.Answered) > 0 {
		b.line("They had been answered with %s.", simulate.AnsweredText(z.Answered))
	}
	most := [][]string{{"THE MOST OF A CLIENT IN ANY", "50%", "90%", "99%", "99.9%", "MAX"}}
	for _, w := range z.Windows {
		m := w.Most
		most = append(most, []string{w.Window, number(m.P50), number(m.P90), number(m.P99), number(m.P999), number(m.Max)})
	}
	b.table(most)
	for i := range z.Windows {
		b.candidates(&z.Windows[i])
	}
	top := [][]string{{"DENIED MOST", "REQUESTS"}}
	for _, t := range z.Top {
		top = append(top, []string{t.Key, number(t.Denied)})
	}
	b.table(top)
}

// clientsText writes how many clients there are, which is an estimate beyond a bound.
func clientsText(n int64) string {
	if n > simulate.ExactClients {
		return "about " + number(n)
	}
	return number(n)
}

// candidates adds other limits for a window.
func (b *page) candidates(w *simulate.Window) {
	rows := [][]string{{"LIMIT", "CLIENTS DENIED", "ONLY 4XX", "REQUESTS DENIED", "NOTE"}}
	for _, c := range w.Candidates {
		limit, note := number(c.Limit)+"/"+w.Window, ""
		if limit == w.Limit {
			note = "the limit, alone"
		}
		if c.Limit == w.Suggested {
			note = strings.TrimPrefix(note+"; suggested", "; ")
		}
		rows = append(rows, []string{limit, number(c.Clients), some(c.Failing), number(c.Requests), note})
	}
	b.table(rows)
	if len(w.Candidates) > 0 {
		b.line("%s", w.Rule())
	}
}
