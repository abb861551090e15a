package limits

import (
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// Limits whose number comes with the request, or is set for its key at run time, and limits of
// which a part is reserved for others. Such a request goes by copies of the zone's limits, which an
// Evaluation keeps; all others go by the zone's own. Counts don't depend on the number, so nothing
// else differs.

// limitsOf returns the limits of a zone as a request brings them or as they are set for its key, o,
// which goes first. It leaves out those that are unlimited for the request: they neither count nor
// are counted. own is set where they are copies. asked is set where it is told that one brings no
// number.
func (e *Evaluation) limitsOf(z *Zone, r *http.Request, o *control.Override, asked bool) (all []Limit, own bool) {
	if o != nil && o.Unlimited {
		return nil, false
	}
	others := uint32(0)
	if z.Reserved != nil {
		others = config.OtherClasses(z.Reserved, r)
	}
	if !z.Varies && o == nil && others == 0 {
		return z.AllLimits, false
	}
	first, vars := len(e.own), reqkey.Vars(r)
	for i := range z.AllLimits {
		l := &z.AllLimits[i]
		if replaces(o, z, l) {
			e.own = append(e.own, l.Overridden(o.Rate.Limit))
			continue
		}
		if l.Number == nil {
			e.own = append(e.own, *l)
			continue
		}
		n, text, ok := l.Number.Read(r, vars)
		switch {
		case !ok && asked:
			n = z.DefaultOf(l, text)
		case !ok:
			n = l.Rate.Limit
		case reqkey.IsEarly(r):
			n = l.Number.InEarlyData(n, l.Rate.Limit)
		}
		if n != reqkey.Unlimited {
			e.own = append(e.own, l.With(n))
		}
	}
	all = e.own[first:len(e.own):len(e.own)]
	if others != 0 {
		for i := range all {
			all[i] = all[i].Without(others)
		}
	}
	return all, true
}

// rulesOf describes the limits of a request to Redis. A call keeps them.
func (zr *zoneResult) rulesOf() []strict.Rule {
	if !zr.own {
		return zr.Rules
	}
	return Rules(zr.limits)
}
