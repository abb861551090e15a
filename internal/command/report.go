package command

import (
	"fmt"
	"os"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/simulate"
)

// report prints what came of a simulation.
func (p printer) report(r *simulate.Report) error {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	const layout = "2006-01-02 15:04:05"
	say("%d requests of %s clients, from %s to %s UTC (%s).", r.Requests, clientsText(r.Clients), r.From.Format(layout), r.To.Format(layout), config.WindowText(rounded(r.To.Sub(r.From))))
	if r.Nodes > 1 {
		say("%d nodes share them.", r.Nodes)
	}
	if r.Read.Damaged > 0 || r.Read.Late > 0 {
		say("Of %d lines %d are damaged and %d late; these are left out.", r.Read.Lines, r.Read.Damaged, r.Read.Late)
	}
	if err := p.lines(&b); err != nil {
		return err
	}
	troubles := [][]string{{"  FILE", "LINE", "WHY"}}
	for _, t := range r.Read.Troubles {
		troubles = append(troubles, []string{"  " + t.File, number(t.Line), t.Why})
	}
	if err := p.table(troubles); err != nil {
		return err
	}
	for i := range r.Zones {
		if err := p.zone(&r.Zones[i]); err != nil {
			return err
		}
	}
	if len(r.Warnings) > 0 {
		say("")
	}
	for _, w := range r.Warnings {
		say("Warning: %s.", w)
	}
	say("\nWhat no log tells:")
	for _, text := range r.Bias {
		say("- %s", text)
	}
	return p.lines(&b)
}

// lines writes lines, and empties b.
func (p printer) lines(b *strings.Builder) error {
	defer b.Reset()
	for line := range strings.Lines(b.String()) {
		if err := p.line("%s", strings.TrimSuffix(line, "\n")); err != nil {
			return err
		}
	}
	return nil
}

// zone prints what a zone would have done.
func (p printer) zone(z *simulate.Zone) error {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("\nZone %s: %s by %s, %s", z.Zone, z.Limits, z.Key, z.Algorithm)
	if z.Requests == 0 {
		say("No request comes to it.")
		return p.lines(&b)
	}
	if len(z.With) > 0 {
		say("With %s.", strings.Join(z.With, ", "))
	}
	would := ""
	if z.WouldDeny > 0 {
		would = fmt.Sprintf(", %d of them only in shadow mode (enforce %s)", z.WouldDeny, z.Enforced)
	}
	if z.Banned > 0 {
		would += fmt.Sprintf("; %d of them during a ban", z.Banned)
	}
	say("Denied: %d of %d requests (%s), of %s of %s clients%s.", z.Denied+z.WouldDeny, z.Requests, simulate.ShareText(z.Share), clientsText(z.DeniedClients), clientsText(z.Clients), would)
	if len(z.Answered) > 0 {
		text := simulate.AnsweredText(z.Answered)
		if z.Answered["2xx"] > 0 {
			text += " (2xx are people kept out)"
		}
		say("They had been answered with %s.", text)
	}
	if err := p.lines(&b); err != nil {
		return err
	}
	most := [][]string{{"THE MOST OF A CLIENT IN ANY", "50%", "90%", "99%", "99.9%", "MAX"}}
	for _, w := range z.Windows {
		m := w.Most
		most = append(most, []string{w.Window, number(m.P50), number(m.P90), number(m.P99), number(m.P999), number(m.Max)})
	}
	if err := p.table(most); err != nil {
		return err
	}
	for i := range z.Windows {
		if err := p.candidates(&z.Windows[i]); err != nil {
			return err
		}
	}
	top := [][]string{{"DENIED MOST", "REQUESTS"}}
	for _, t := range z.Top {
		top = append(top, []string{t.Key, number(t.Denied)})
	}
	return p.table(top)
}

// clientsText writes how many clients there are, which is an estimate beyond a bound.
func clientsText(n int64) string {
	if n > simulate.ExactClients {
		return "about " + number(n)
	}
	return number(n)
}

// candidates prints other limits for a window.
func (p printer) candidates(w *simulate.Window) error {
	rows := [][]string{{"CANDIDATE", "TOUCHES CLIENTS", "AND REQUESTS", ""}}
	for _, c := range w.Candidates {
		limit, note := number(c.Limit)+"/"+w.Window, ""
		if limit == w.Limit {
			note = "the limit, alone"
		}
		if c.Limit == w.Suggested {
			note = strings.TrimPrefix(note+"; suggested", "; ")
		}
		rows = append(rows, []string{limit, number(c.Clients), number(c.Requests), note})
	}
	if err := p.table(rows); err != nil {
		return err
	}
	if len(w.Candidates) == 0 {
		return nil
	}
	return p.line("%s", w.Rule())
}

// writeHTML writes the report as a page.
func writeHTML(path string, r *simulate.Report) error {
	page, err := r.HTML()
	if err == nil {
		err = os.WriteFile(path, page, 0o600)
	}
	if err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	return nil
}
