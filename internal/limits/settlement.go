package limits

import (
	"net/http"
	"strconv"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/figures"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// Zones with response_cost: a request reserves its cost as an estimate, and its response says what
// it has cost in truth. A figure in a header is known when the response begins, and what else says
// it when the handler has returned. Where there is no figure nothing is refunded: a client often
// chooses whether there is one.

// A responseCost works out what a response says. Nil is for zones that don't ask.
type responseCost struct {
	config.ResponseCost
	// numbers are those of placeholders, nil for each other term, and times the factors.
	numbers []*reqkey.Number
	times   []float64
	// paths are those of JSON, each term of which is a line of them; nil for none.
	paths *figures.Paths
	// took is how long the last answers took.
	took answerTimes
	// atEnd is set where a figure is known only when the handler has returned, and mayGrow where
	// one that is seen before may still grow.
	atEnd, mayGrow bool
}

func newResponseCost(c config.ResponseCost) *responseCost {
	if len(c.Terms) == 0 {
		return nil
	}
	rc := &responseCost{ResponseCost: c, numbers: make([]*reqkey.Number, len(c.Terms))}
	if lines := c.JSON(); lines != nil {
		rc.paths, _ = figures.NewPaths(lines) // whose paths were checked
	}
	for i, t := range c.Terms {
		rc.times = append(rc.times, t.Times())
		rc.atEnd = rc.atEnd || t.Header == ""
		if t.Units != "" {
			rc.numbers[i] = reqkey.NewNumber(t.Units)
		}
		rc.mayGrow = rc.mayGrow || t.Units != "" || len(t.JSON) > 0
	}
	return rc
}

// A settlement is what is known of a response until its request is settled, once.
type settlement struct {
	zone  *Zone
	units []reservedUnit
	n     int64 // what the request took
	since int64 // when it was admitted

	begun Response
	// headers are the figures in headers, as they were when the response began; noFigure or
	// badFigure for none. encoded is set where the body is compressed.
	headers       []float64
	encoded, done bool
	// cost is what the request has cost, once it is done.
	cost int64
	// size is the length of the body by the header, -1 where that does not say.
	size int64
	// body reads JSON, nil where there is none to be read.
	body *figures.Scanner
}

// Settled returns what a request that takes n units costs in the end, by a response that somebody
// else has sent.
func (z *Zone) Settled(n int64, r Response) int64 {
	if z.responseCost == nil {
		if z.countsResponse(r) {
			return n
		}
		return 0
	}
	s := settlement{zone: z, n: n, since: clock.Now()}
	s.begin(r)
	s.finish(r.Size, true)
	return s.cost
}

// holdCost has an admitted request settle by what its response says.
func (z *Zone) holdCost(units []reservedUnit, n int64, h *Held) {
	s := &settlement{zone: z, units: units, n: n, since: clock.Now()}
	h.OnBegin(func(r Response) {
		if s.begin(r); s.body != nil {
			h.Read(s.body)
		}
	})
	if z.responseCost.atEnd {
		h.OnEnd(func() { s.finish(h.written(), h.complete) })
	}
}

// begin settles what is known when the response begins.
func (s *settlement) begin(r Response) {
	s.begun = r
	switch counts := s.zone.noteResponse(r); {
	case r.Status == 0: // nobody knows what it was to be
		s.settle(s.n)
		return
	case !counts:
		s.settle(0)
		return
	}
	c := s.zone.responseCost
	s.headers = make([]float64, len(c.Terms))
	for i, t := range c.Terms {
		s.headers[i] = headerFigure(r.Header, t.Header)
	}
	if !c.atEnd {
		s.finish(0, true)
		return
	}
	s.size = -1
	if n, err := strconv.ParseInt(r.Header.Get("Content-Length"), 10, 64); err == nil {
		s.size = n
	}
	format, ok := figures.FormatOf(r.Header.Get("Content-Type"))
	encoding := r.Header.Get("Content-Encoding")
	if s.encoded = encoding != "" && encoding != "identity"; c.paths != nil && ok && !s.encoded {
		s.body = c.paths.Scanner(format)
	}
}

// finish settles by the figures what is not settled yet when the handler has returned: in order, or
// after a panic, an error, or with its client gone. Where the response did not end in order what
// was seen may be less than it has cost, except for bytes, which are those that left. One whose
// JSON has ended, or its last event has passed, or as many bytes as its header said, has ended in
// order, whoever leaves then: a client that has all may close its connection before the handler has
// returned.
func (s *settlement) finish(written int64, complete bool) {
	if s.done {
		return
	}
	c := s.zone.responseCost
	least := max(s.n, s.leastCost())
	sum, ok := s.figure(written)
	complete = complete || s.size == written || s.body != nil && s.body.Done
	if !ok {
		s.noteMissing(complete)
	}
	m := min(config.WholeUnits(sum), config.MaxCost)
	switch {
	case !ok && s.leastCost() > 0:
		m = max(m, least)
	case !ok:
		m = s.n
	case !complete && c.mayGrow && m < least:
		s.zone.Decisions.CountEvent(metrics.CostGone)
		m = least
	}
	s.settle(m)
}

// figure adds the figures up, as far as they were seen. Without that of the first line there is
// none; each other line adds 0 where it has none.
func (s *settlement) figure(written int64) (sum float64, ok bool) {
	c, line := s.zone.responseCost, 0
	for i := range c.Terms {
		t, n, has := &c.Terms[i], s.headers[i], s.headers[i] >= 0
		switch {
		case t.Bytes:
			n, has = float64(written), s.begun.Status != http.StatusSwitchingProtocols && !s.begun.Errored
			if !s.begun.hasBody() {
				n = 0
			}
		case c.numbers[i] != nil && s.begun.Request != nil:
			n, has = config.ParseUnits(c.numbers[i].Text(s.begun.Request, reqkey.Vars(s.begun.Request)))
		case len(t.JSON) > 0:
			if line++; s.body != nil {
				n, has = s.body.Number(line - 1)
			}
		}
		if i == 0 {
			ok = has
		}
		if has {
			sum += n * c.times[i]
		}
	}
	return sum, ok && (s.body == nil || !s.body.TooDeep)
}

// leastCost is response_cost_default, 0 for responses that have no body to tell of.
func (s *settlement) leastCost() int64 {
	if !s.tells() {
		return 0
	}
	return s.zone.responseCost.Default
}

// tells reports whether the response is one that has a body to tell of its cost.
func (s *settlement) tells() bool {
	r := s.begun.Request
	return s.begun.hasBody() && (r == nil || r.Method != http.MethodOptions)
}

func (s *settlement) settle(m int64) {
	s.done, s.cost = true, m
	s.zone.Decisions.CountSettled(s.n, m)
	if s.begun.Status != 0 {
		s.zone.responseCost.took.add(clock.Now() - s.since)
	}
	for i := range s.units {
		s.units[i].settle(m, s.begun.At)
	}
	if r := s.begun.Request; r != nil {
		if repl := reqkey.ReplacerOf(r); repl != nil {
			repl.Set("http.rate_limit."+s.zone.Name+".cost", m)
		}
	}
}

// hasBody reports whether a response can have one.
func (r *Response) hasBody() bool {
	return r.Status != http.StatusNoContent && r.Status != http.StatusNotModified && (r.Request == nil || r.Request.Method != http.MethodHead)
}
