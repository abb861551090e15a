package limits

import (
	"net/http"
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/matchers"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/settings"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// Enforcement returns for which keys the zone is enforced: what an operator has said at run time,
// else what the configuration says. Requests go by this and nothing else.
func (z *Zone) Enforcement() settings.Enforcement { return z.enforcement(z.atRuntime.Load()) }

func (z *Zone) enforcement(atRuntime *control.Rules) settings.Enforcement {
	if atRuntime != nil && atRuntime.Enforce != nil {
		return *atRuntime.Enforce
	}
	return z.Enforce
}

// enforces reports whether the zone denies requests of a key, or is in shadow mode for it. raw is
// empty for a request without a key: these are in or out together. A key in early data is where it
// is once it is proven.
func (z *Zone) enforces(raw []byte) bool {
	return z.isFull && z.atRuntime.Load() == nil || z.enforcesSome(raw)
}

func (z *Zone) enforcesSome(raw []byte) bool {
	if z.look != nil {
		return z.Enforces(*z.look)
	}
	e := z.Enforcement()
	return e.IsFull() || !e.IsOff() && e.Includes(table.IDOf(reqkey.AsProven(raw)), z.salt)
}

// matches reports whether a request is one that the zone is for. Caddy's matchers of addresses end
// early data with 425, which proves no address. Where the zone is in shadow mode for such a
// request, that would deny it: there it does not match.
func (z *Zone) matches(r *http.Request) (bool, error) {
	ok, err := z.Matchers.AnyMatchWithError(r)
	if !matchers.IsTooEarly(err) {
		return ok, err
	}
	if raw, _, _ := z.appendKey(nil, r, reqkey.Vars(r)); z.enforces(raw) {
		return false, err
	}
	return matchers.Proven(z.Matchers, r)
}

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

// askShadows asks the zones that are not enforced for their keys: the last ones of their class.
func (e *Evaluation) askShadows(r *http.Request) error {
	for i := range e.shadows {
		k := &e.shadows[i]
		e.decide(k, e.keys[k.key[0]:k.key[1]], r)
		if k.isStrict() && r.Context().Err() != nil {
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
		z.denials.Denied(e.now, answer.LoggedDenial{Request: r, Wait: wait, Shadow: true})
	}
	z.metrics.Count(metrics.WouldDeny)
	e.noteWouldDeny(z.Zone, wait)
}

// recordWouldDeny counts and logs a request in a zone that would have denied it. Early data, which
// proves no address, is counted only: a line or a placeholder would blame the owner of an address.
func (e *Evaluation) recordWouldDeny(zr *zoneResult, r *http.Request) {
	zr.metrics.Count(metrics.WouldDeny)
	if zr.early {
		return
	}
	d := e.loggedDenial(zr, r)
	zr.denials.Denied(e.now, d)
	e.countDenial(zr, r)
	e.noteWouldDeny(zr.Zone, d.Wait)
}

// noteWouldDeny notes a denial that is not enforced, of which the longest is told.
func (e *Evaluation) noteWouldDeny(z *Zone, wait time.Duration) {
	if wait >= e.wouldDeny.Wait {
		e.wouldDeny = answer.WouldDeny{Zone: z.Name, Wait: wait}
	}
}

// WouldDeny returns what zones in shadow mode would have done.
func (e *Evaluation) WouldDeny() answer.WouldDeny { return e.wouldDeny }
