package limits

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// What stands for the figure of a header that has none: there is no such header, or what it has is
// no number.
const noFigure, badFigure = -1, -2

// headerFigure returns the figure of a field, "" for none.
func headerFigure(h http.Header, field string) float64 {
	values := h.Values(field)
	if field == "" || len(values) == 0 {
		return noFigure
	}
	if n, ok := config.ParseUnits(values[0]); ok && len(values) == 1 {
		return n
	}
	return badFigure
}

// noteMissing counts that a response has no figure that should have one, and warns of it unless it
// is the client that has gone.
func (s *settlement) noteMissing(complete bool) {
	if !s.tells() {
		return
	}
	why, z := s.whyMissing(complete), s.zone
	switch t := &z.responseCost.Terms[0]; {
	case s.begun.Errored: // who answers the error knows of no cost
	case why == metrics.CostEncoded:
		z.Once.Warn(z.Logger, warning.NoCost, fmt.Sprintf("zone %q: a response is compressed, so what it has cost is not known; write `header_up -Accept-Encoding` in reverse_proxy, and encode before rate_limit in a route; "+
			"more of this zone are not reported until the next reload", z.Name))
	case why != metrics.CostGone && !t.Bytes:
		z.Once.Warn(z.Logger, warning.NoCost, fmt.Sprintf("zone %q: a response has no number %s; leave out with count_responses what costs nothing; more of this zone are not reported until the next reload", z.Name, sourceOf(t)))
	}
	z.Decisions.CountEvent(why)
}

// whyMissing returns why the first line has no figure, or the body is not to be believed.
func (s *settlement) whyMissing(complete bool) metrics.Event {
	c, bad := s.zone.responseCost, false
	switch t := &c.Terms[0]; {
	case len(t.JSON) > 0 && s.encoded:
		return metrics.CostEncoded
	case t.Header != "":
		bad = s.headers[0] == badFigure
	case c.numbers[0] != nil && s.begun.Request != nil:
		bad = c.numbers[0].Text(s.begun.Request, reqkey.Vars(s.begun.Request)) != ""
	}
	switch {
	case bad || s.body != nil && s.body.Bad:
		return metrics.CostBad
	case !complete:
		return metrics.CostGone
	}
	return metrics.CostAbsent
}

// sourceOf says where a figure was looked for, and what may bring it.
func sourceOf(t *config.ResponseTerm) string {
	switch {
	case t.Header != "":
		return "in its header " + t.Header + "; have the upstream send it, and no header_down remove it"
	case t.Units != "":
		return "in " + t.Units + " once it had ended; write what has one then"
	}
	return "at " + strings.Join(t.JSON, " or ") + "; correct the path, and for streams of OpenAI have clients ask for stream_options.include_usage"
}
