package limits

import (
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// overrideOf returns what an operator has set for a key at run time, nil for nothing. It costs an
// atomic load where no zone has any.
func (z *Zone) overrideOf(hash table.Key, raw []byte) *control.Override {
	if rules := z.atRuntime.Load(); rules != nil {
		if z.look != nil {
			return rules.OverrideOf(z.look.ID)
		}
		return rules.Override(hash, raw)
	}
	return nil
}

// bar denies a request whatever its limits say, or notes in shadow mode that it would.
func (e *Evaluation) bar(k keyed, hash table.Key, r *http.Request) {
	z := k.Zone
	z.denials.Denied(e.now, answer.LoggedDenial{Request: r, Key: e.keys[k.key[0]:k.key[1]], Hash: hash[0], Shadow: k.shadow})
	if k.shadow {
		z.metrics.Count(metrics.WouldDeny)
		e.noteWouldDeny(z, 0)
		return
	}
	z.metrics.Count(metrics.Denied)
	e.barred = z
}

// replaces reports whether an override is about a limit of a zone.
func replaces(o *control.Override, z *Zone, l *Limit) bool {
	return o != nil && (o.Rate.Window == l.Rate.Window || o.Rate.Window == 0 && len(z.limits) == 1)
}
