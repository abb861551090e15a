package limits

import (
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// Limits whose number comes with the request, or is set for its key at run time, and limits of
// which a part is reserved for others. Such a request goes by copies of the zone's limits, which an
// Evaluation keeps; all others go by the zone's own. Counts don't depend on the number, so nothing
// else differs.

// limitsOf returns the limits of a zone as a request brings them or as they are set for its key, o,
// which goes first. It leaves out those that are unlimited for the request: they neither count nor
// are counted. Copies are appended to perRequest. asked is set where it is told that one brings no
// number.
func (z *Zone) limitsOf(perRequest []Limit, r *http.Request, o *control.Override, asked bool) (all, appended []Limit) {
	if o != nil && o.Unlimited && o.Rates == nil {
		return nil, perRequest
	}
	others := uint32(0)
	if z.ClassMatchers != nil {
		others = config.OtherClasses(z.ClassMatchers, r)
	}
	if !z.Varies && o == nil && others == 0 {
		return z.AllLimits, perRequest
	}
	first, vars := len(perRequest), reqkey.Vars(r)
	for i := range z.AllLimits {
		l := &z.AllLimits[i]
		if n, ok := o.LimitOf(l.Rate.Window, len(z.AllLimits) == 1); ok {
			perRequest = append(perRequest, l.Overridden(n))
			continue
		}
		if o != nil && o.Unlimited {
			continue
		}
		if l.Number == nil {
			perRequest = append(perRequest, *l)
			continue
		}
		n, text, ok := l.Number.Read(r, vars)
		switch {
		case !ok && asked:
			n = z.DefaultOf(l, text)
		case !ok:
			n = l.Rate.Limit
		}
		if n != reqkey.Unlimited {
			perRequest = append(perRequest, l.With(n))
		}
	}
	all = perRequest[first:len(perRequest):len(perRequest)]
	if others != 0 {
		for i := range all {
			all[i] = all[i].Without(others)
		}
	}
	return all, perRequest
}

// arePerRequest reports whether limits are copies for a request.
func (z *Zone) arePerRequest(limits []Limit) bool {
	return len(limits) > 0 && &limits[0] != &z.AllLimits[0]
}
