package limits

import (
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// bar denies a request whatever its limits say, or notes in shadow mode that it would.
func (e *Evaluation) bar(k keyed) {
	k.barred = true
	e.closed = append(e.closed, k)
	if k.shadow {
		e.overShadow = true
	} else {
		e.denied, e.barred, e.barredEarly = true, k.Zone, reqkey.IsUnproven(e.keys[k.key[0]:k.key[1]])
	}
}

// recordBarred counts and logs a request in a zone in which an operator denies all of its key, or
// would in shadow mode.
func (e *Evaluation) recordBarred(k keyed, r *http.Request) {
	raw := e.keys[k.key[0]:k.key[1]]
	early := reqkey.IsUnproven(raw)
	if !early { // as in recordDenials
		k.Denials.Denied(e.now, answer.LoggedDenial{Request: r, Key: raw, Hash: keys.KeyOf(raw).A, Shadow: k.shadow})
	}
	switch {
	case k.shadow:
		k.Decisions.Count(answer.WouldDeny)
		if !early {
			e.noteWouldDeny(k.Zone, 0)
		}
	case early:
		k.Decisions.Count(answer.TooEarly)
	default:
		k.Decisions.Count(answer.Denied)
	}
}

// replaces reports whether an override is about a limit of a zone.
func replaces(o *control.Override, z *Zone, l *Limit) bool {
	return o != nil && (o.Rate.Window == l.Rate.Window || o.Rate.Window == 0 && len(z.AllLimits) == 1)
}
