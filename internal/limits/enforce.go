package limits

import (
	"crypto/sha256"
	"encoding/binary"
	"net/http"
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/metrics"
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

// saltOf returns what makes each zone enforce a share of its own keys: the first 64 bits of the
// SHA-256 of its name, which is the same on all nodes.
func saltOf(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(sum[:])
}

// enforces reports whether the zone denies requests of a key, or is in shadow mode for it. raw is
// empty for a request without a key: these are in or out together.
func (z *Zone) enforces(raw []byte) bool {
	if z.look != nil {
		return z.Enforces(*z.look)
	}
	e := z.Enforcement()
	return e.IsFull() || !e.IsOff() && e.Includes(table.IDOf(raw), z.salt)
}

// keyed is a zone that is asked for a key.
type keyed struct {
	*Zone
	key  [2]int // in Evaluation.keys
	none bool   // there is no key, and requests without one are denied
	// shadow is set where the zone is not enforced for the key.
	shadow bool
}

// askShadows asks the zones that are not enforced for their keys: the last ones of their class.
func (e *Evaluation) askShadows(r *http.Request) error {
	for _, k := range e.shadows {
		e.decide(k, r)
		if k.isStrict() && r.Context().Err() != nil {
			return errGone
		}
	}
	e.shadows = e.shadows[:0]
	return nil
}

// close notes that a zone denies without counting, as there is no key or Redis is unavailable. In
// shadow mode it would.
func (e *Evaluation) close(k keyed, unavailable bool, r *http.Request) {
	z := k.Zone
	if !k.shadow {
		e.uncounted, e.unavailable = z, e.unavailable || unavailable
		return
	}
	wait := time.Second
	if !unavailable {
		wait = z.Limits[0].Window
		z.denials.Denied(e.now, answer.LoggedDenial{Request: r, Wait: wait, Shadow: true})
	}
	z.metrics.Count(metrics.WouldDeny)
	e.noteWouldDeny(z, wait)
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
