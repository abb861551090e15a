package limits

import (
	"net/http"
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// keyed is a zone that is asked for a key.
type keyed struct {
	*Zone
	key  [2]int // in Evaluation.keys
	none bool   // there is no key, and requests without one are denied
	// shadow is set where the zone is not enforced for the key, unavailable where it then would
	// deny as Redis is.
	shadow, unavailable bool
	// barred is set where an operator denies all requests of the key.
	barred bool
	// rest is how much longer the key is banned.
	rest time.Duration
}

// question is what a zone is asked: for a key, under limits that are the request's own where own is
// set. by is what an operator has set for the key.
type question struct {
	keyed
	empty  bool // the template made no key
	hash   keys.Key
	by     *control.Override
	limits []Limit
	own    bool
}

// isBarred reports whether an operator denies all requests of the key.
func (q *question) isBarred() bool { return q.by != nil && q.by.Deny }

// isClosed reports whether no limit is asked, as there is no key or an operator denies all requests
// of it.
func (q *question) isClosed() bool { return q.none || q.isBarred() }

// questionFor makes the key of a request in a zone that it has just matched, and reads its limits.
// In a zone that is not asked nothing is counted and told of that.
func (e *Evaluation) questionFor(z *Zone, r *http.Request, vars map[string]any, asked bool) (q question) {
	start := len(e.keys)
	e.keys, q.empty, q.none = z.AppendKey(e.keys, r, vars)
	q.Zone, q.key = z, [2]int{start, len(e.keys)}
	if q.none {
		return q
	}
	raw := e.rawOf(&q.keyed)
	q.hash = keys.KeyOf(raw)
	q.by, q.limits = z.Override(q.hash, raw), z.AllLimits
	if (q.by != nil || z.Varies || z.Reserved != nil) && !q.isBarred() {
		q.limits, q.own = e.limitsOf(z, r, q.by, asked)
	}
	return q
}

// askShadows asks the zones that are not enforced for their keys: the last ones of their class.
func (e *Evaluation) askShadows(r *http.Request) error {
	for i := range e.shadows {
		q := &e.shadows[i]
		e.decide(q, r)
		if q.IsStrict() && r.Context().Err() != nil {
			return errGone
		}
	}
	e.shadows = e.shadows[:0]
	return nil
}

// close notes that a zone denies without counting, as there is no key or Redis is unavailable. In
// shadow mode it would.
func (e *Evaluation) close(k keyed, unavailable bool) {
	if !k.shadow {
		e.denied, e.uncounted, e.unavailable = true, k.Zone, e.unavailable || unavailable
		return
	}
	k.unavailable = unavailable
	e.closed, e.overShadow = append(e.closed, k), true
}

// recordClosed counts and logs a request in a zone that would have denied it without counting.
func (e *Evaluation) recordClosed(z keyed, r *http.Request) {
	wait := time.Second
	if !z.unavailable {
		wait = z.FirstWindow()
		z.Denials.Denied(e.now, answer.LoggedDenial{Request: r, Wait: wait, Shadow: true})
	}
	z.Decisions.Count(answer.WouldDeny)
	e.noteWouldDeny(z.Zone, wait)
}

// recordWouldDeny counts and logs a request in a zone that would have denied it. Early data, which
// proves no address, is counted only: a line or a placeholder would blame the owner of an address.
func (e *Evaluation) recordWouldDeny(zr *zoneResult, r *http.Request) {
	zr.Decisions.Count(answer.WouldDeny)
	if zr.early {
		return
	}
	d := e.loggedDenial(zr, r)
	zr.Denials.Denied(e.now, d)
	e.countDenial(zr, r)
	e.noteWouldDeny(zr.Zone, d.Wait)
}

// noteWouldDeny notes a denial that is not enforced, of which the longest is told.
func (e *Evaluation) noteWouldDeny(z *Zone, wait time.Duration) {
	if wait >= e.wouldDeny.Wait {
		e.wouldDeny = answer.ShadowDenial{Zone: z.Name, Wait: wait}
	}
}

// WouldDeny returns what zones in shadow mode would have done.
func (e *Evaluation) WouldDeny() answer.ShadowDenial { return e.wouldDeny }
