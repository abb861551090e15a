package limits

import (
	"net/http"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// Zones with cost, in which a request takes another number of units than one. Tables, machines and
// the sync take any number; what is special is here: where the number comes from, and what it is to
// be 0, or more than is ever admitted at once.

// CountsUnits reports whether a request may take another number of units than one.
func (z *Zone) CountsUnits() bool { return z.cost != nil }

// HideIETF has the draft's headers not tell of a zone, before its first request: they would be
// read as a number of requests.
func (z *Zone) HideIETF() {
	for i := range z.AllLimits {
		z.AllLimits[i].Policy = z.AllLimits[i].Policy.WithoutIETF()
	}
}

// A cost works out what a request takes. Nil is one unit for each.
type cost struct {
	config.Cost
	// numbers are those that come with a request, nil for each other term, and times the factors.
	numbers []*reqkey.Number
	times   []float64
	// fixed is the cost of all requests, -1 where it depends on the request. least is 1 where a
	// client chooses the number, as nobody is to have it free.
	fixed, least int64
}

// newCost returns nil where each request costs one unit. An estimate, which the response corrects,
// is 1 at least: who has nothing left is denied.
func newCost(s *config.Settings) *cost {
	c, estimate := s.Cost, len(s.ResponseCost.Terms) > 0
	if c.IsConstant() {
		if n := c.Constant(); n != 1 || estimate {
			return &cost{Cost: c, fixed: n}
		}
		return nil
	}
	all := &cost{Cost: c, fixed: -1, numbers: make([]*reqkey.Number, len(c.Terms))}
	if estimate {
		all.least, all.Default = 1, max(1, c.Default)
	}
	for i, t := range c.Terms {
		all.times = append(all.times, t.Times())
		if t.Units != nil && t.Units.From != "" {
			all.numbers[i] = reqkey.NewNumber(t.Units.From)
			if all.numbers[i].IsClients() {
				all.least = 1
			}
		}
	}
	return all
}

// of returns what a request with these variables takes. isDefault is set where something that it
// goes by has no number.
func (c *cost) of(r *http.Request, vars map[string]any) (n int64, isDefault bool) {
	if c.fixed >= 0 {
		return c.fixed, false
	}
	sum := 0.0
	for i := range c.Terms {
		t, units, ok := &c.Terms[i], 0.0, true
		switch {
		case c.numbers[i] != nil:
			units, ok = config.ParseUnits(c.numbers[i].Text(r, vars))
		case t.Bytes:
			units, ok = float64(r.ContentLength), r.ContentLength >= 0
		default:
			units = t.Units.Number
		}
		if !ok {
			return c.Default, true
		}
		sum += units * c.times[i]
	}
	return max(config.WholeUnits(sum), c.least), false
}

// costOf returns what a request takes, and counts one that goes by the default.
func (z *Zone) costOf(r *http.Request, vars map[string]any) int64 {
	n, isDefault := z.cost.of(r, vars)
	if isDefault {
		z.Decisions.CountEvent(metrics.CostDefault)
	}
	return n
}

// exceeds reports whether a limit never admits n units at once. One of 0 denies for another reason.
func (c *cost) exceeds(n int64, l *algorithms.Limit) bool {
	return n > 1 && l.N > 0 && n > min(l.Size, config.MaxCost)
}

// exceedsSome reports whether one of the limits of a request never admits n units. A nil cost has
// none that doesn't.
func (c *cost) exceedsSome(n int64, limits []Limit) bool {
	for i := range limits {
		if c != nil && c.exceeds(n, &limits[i].Effective) {
			return true
		}
	}
	return false
}

// isTooLarge reports whether the limits of a request never admit what it takes. By the whole
// limits: a share of one admits little for as long as Redis is unavailable, which ends. Then they
// are read, as it spends nothing, and taken say what they have.
func (z *Zone) isTooLarge(a *table.Ask, limits []Limit, now int64, taken *[]table.Taken) bool {
	a.N = z.capped(a.N, limits)
	n := a.N
	if !z.cost.exceedsSome(n, limits) {
		return false
	}
	a.Now, a.N = now, 0
	if z.Dry != nil {
		z.Dry.noteUsage(limits, now)
	}
	for i := range limits {
		l, t := &limits[i], oneMore(taken)
		l.Decide(a, z.Kind.Traits().Waits, t)
		t.Allowed = !z.cost.exceeds(n, &l.Effective)
	}
	a.N = n
	return true
}

// countRefund counts that a request gets n units back whose response doesn't count.
func (z *Zone) countRefund(n int64, h *Held) {
	h.OnBegin(func(r Response) {
		if !z.countsResponse(r) {
			z.Decisions.CountSettled(n, 0)
		}
	})
}

// capped returns what a request reserves that asks for n units. An estimate is lowered to what all
// of its limits admit at once: otherwise a wrong one would lock out for good.
func (z *Zone) capped(n int64, limits []Limit) int64 {
	if z.responseCost == nil {
		return n
	}
	return min(n, mostOf(limits))
}

// mostOf returns the most that the limits of a request admit at once.
func mostOf(limits []Limit) int64 {
	most := int64(config.MaxCost)
	for i := range limits {
		if l := &limits[i].Effective; l.N > 0 {
			most = min(most, max(1, l.Size))
		}
	}
	return most
}
