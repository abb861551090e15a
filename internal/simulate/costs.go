package simulate

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/accesslog"
	"github.com/caddy-tide/ratelimit/internal/limits"
)

// Zones with response_cost settle by what the log has of responses, when these had ended: headers
// and lengths. What else says what a request has cost is in no log but by Options.CostField.

// costHeader is the field of the response's header that has Options.CostField.
const costHeader = "X-Cost-In-Log"

const sizeInLog, headersInLog = "size", "resp_headers."

// responseCost has a zone go by what logs have.
func (p *Policy) responseCost(name string, z object) {
	var kept []any
	for _, t := range objectsOf(z["response_cost"]) {
		header, _ := t["header"].(string)
		switch {
		case t["bytes"] == true:
			p.answer(sizeInLog)
		case header != "":
			p.answer(headersInLog + header)
		case slices.Contains(p.untold, name):
			continue // the field is all that they say
		default:
			p.untold = append(p.untold, name)
			t = object{"header": costHeader, "factor": t["factor"]}
		}
		kept = append(kept, t)
	}
	if len(kept) > 0 {
		z["response_cost"] = kept
	}
}

// answer notes a field of the log that says something of responses.
func (p *Policy) answer(field string) {
	if !slices.Contains(p.answers, field) {
		p.answers = append(p.answers, field)
	}
}

// tell has a response say what its line says. cost is what Options.CostField says of it.
func (p *Policy) tell(r *limits.Response, rec *accesslog.Record, cost string) {
	if len(p.answers)+len(p.untold) == 0 {
		return
	}
	r.Header = http.Header{}
	if cost != "" {
		r.Header.Set(costHeader, cost)
	}
	for _, field := range p.answers {
		text := rec.Fields[field]
		if header, ok := strings.CutPrefix(field, headersInLog); !ok {
			r.Size, _ = strconv.ParseInt(text, 10, 64)
		} else if text != "" {
			r.Header.Set(header, text)
		}
	}
	if rec.Method == http.MethodHead || rec.Method == http.MethodOptions {
		r.Request = &http.Request{Method: rec.Method}
	}
}

// warnUntold warns of costs that are in no field of the log.
func (p *Policy) warnUntold() {
	for _, name := range p.untold {
		p.warn(fmt.Sprintf("zone %q: logs don't have what response_cost reads, so each request costs its estimate; have the log have it, and give --cost-field", name))
	}
}
