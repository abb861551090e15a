package limits

import (
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// overrideOf returns what an operator has set for a key at run time, nil for nothing. It costs an
// atomic load where no zone has any.
func (z *Zone) overrideOf(hash table.Key, raw []byte) *control.Override {
	if rules := z.atRuntime.Load(); rules != nil {
		if z.look != nil {
			return rules.OverrideOf(z.look.ID)
		}
		if proven := reqkey.AsProven(raw); isEarly(raw) {
			// An address that early data doesn't prove can be barred, and gets nothing else.
			if o := rules.Override(table.KeyOf(proven), proven); o != nil && o.Deny {
				return o
			}
			return nil
		}
		return rules.Override(hash, raw)
	}
	return nil
}

// bar denies a request whatever its limits say, or notes in shadow mode that it would.
func (e *Evaluation) bar(k keyed) {
	k.barred = true
	e.closed = append(e.closed, k)
	if k.shadow {
		e.overShadow = true
	} else {
		e.denied, e.barred, e.barredEarly = true, k.Zone, isEarly(e.keys[k.key[0]:k.key[1]])
	}
}

// isEarly reports whether a key, which may be empty, has an address that early data doesn't prove.
func isEarly(raw []byte) bool { return len(raw) > 0 && reqkey.IsUnproven(raw) }

// recordBarred counts and logs a request in a zone in which an operator denies all of its key, or
// would in shadow mode.
func (e *Evaluation) recordBarred(k keyed, r *http.Request) {
	raw := e.keys[k.key[0]:k.key[1]]
	early := isEarly(raw)
	if !early { // as in recordDenials
		k.denials.Denied(e.now, answer.LoggedDenial{Request: r, Key: raw, Hash: table.KeyOf(raw).A, Shadow: k.shadow})
	}
	switch {
	case k.shadow:
		k.metrics.Count(metrics.WouldDeny)
		if !early {
			e.noteWouldDeny(k.Zone, 0)
		}
	case early:
		k.metrics.Count(metrics.TooEarly)
	default:
		k.metrics.Count(metrics.Denied)
	}
}

// replaces reports whether an override is about a limit of a zone.
func replaces(o *control.Override, z *Zone, l *Limit) bool {
	return o != nil && (o.Rate.Window == l.Rate.Window || o.Rate.Window == 0 && len(z.limits) == 1)
}
