package limits

import (
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A throttle is a key of a zone with bandwidth, which slows the response to an admitted request.
// This decides nothing: so it holds whatever happens to Redis, and with a zone that has no limit.
type throttle struct {
	*Zone
	key keys.Key
}

// throttle notes that a key slows the response. It returns false where it doesn't: the zone has no
// bandwidth or is not enforced for the key, or an operator has set the key to unlimited.
func (e *Evaluation) throttle(k *keyed, key keys.Key, o *control.Override) bool {
	if k.Throttle == nil || k.shadow || o != nil && o.Unlimited {
		return false
	}
	e.throttles, e.holds = append(e.throttles, throttle{k.Zone, key}), true
	return true
}

// holdThrottles has the response to an admitted request wait for its turns.
func (e *Evaluation) holdThrottles(h *Held) {
	for _, t := range e.throttles {
		if _, asked := e.Of(t.Zone); !asked { // else Enter has counted it
			t.Decisions.Count(answer.Admitted)
		}
		h.Wrap(func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
			slowed, overflow := t.Throttle.Throttle(w, r, keys.Key(t.key))
			if overflow {
				t.Notices.Full(&t.Settings, t.Once, t.Logger)
			}
			if slowed == nil {
				return w
			}
			h.OnEnd(slowed.Close)
			return slowed
		})
	}
}
