package limits

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
)

// Hold returns what an admitted request holds, nil for nothing. It does not refer to the
// Evaluation.
func (e *Evaluation) Hold() (h *Held) {
	for i := range e.checks {
		p := &e.checks[i]
		if p.decision.isDenial() || p.Throttle == nil && p.Slots == nil && p.Reserving == 0 {
			continue
		}
		if h == nil {
			h = new(Held)
		}
		holdBandwidth(p, h)
		holdCounts(e, p, h)
	}
	return h
}

// Results returns what each limit decided.
func (e *Evaluation) Results() []answer.Result {
	if len(e.results) > 0 {
		return e.results
	}
	e.results = slices.Grow(e.results, len(e.taken))[:len(e.taken)]
	for i := range e.checks {
		p := &e.checks[i]
		if p.slot > 0 {
			t, d := &e.slots[p.slot-1], &e.results[p.first-1]
			*d = t.By.Result(t)
			d.Shadow = p.shadow
		}
		for j := range p.limits {
			d := &e.results[p.first+j]
			p.limits[j].Fill(&e.taken[p.first+j].Decision, d)
			if d.Shadow = p.shadow; p.cost != nil {
				d.Cost, d.TooLarge = cmp.Or(p.ask.N, answer.Free), p.decision == tooLarge && !d.Allowed
			}
		}
	}
	return e.results
}

// Near returns the limits that have admitted the request with a fifth or less left, if that was not
// told in this window for the key: not of zones that are not enforced for it.
func (e *Evaluation) Near() (limits []answer.NearLimit) {
	results := e.Results()
	for i := range e.checks {
		p := &e.checks[i]
		if p.decision.isDenial() || p.shadow {
			continue
		}
		for j := range p.limits {
			l, d := &p.limits[j], &results[p.first+j]
			windows := algorithms.Epochs{Length: int64(l.Rate.Window), Calendar: l.Policy.Calendar}
			if isNear(d.Remaining, d.Size) && l.Near.First(p.ask.Key, windows.At(e.Now), p.MaxKeys) {
				limits = append(limits, answer.NearLimit{Result: d, Who: p.who(p.ask.Raw)})
			}
		}
	}
	return limits
}

// MarkCounted notes in a request that error routes must not count it again, if there is an error,
// which it returns.
func (e *Evaluation) MarkCounted(r *http.Request, err error) error {
	if err != nil {
		var names []string
		for i := range e.checks {
			if p := &e.checks[i]; p.decision.isByLimits() || p.decision == banned {
				names = append(names, p.Name)
			}
		}
		markCounted(r, names)
	}
	return err
}
