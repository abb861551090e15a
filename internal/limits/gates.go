package limits

import (
	"net/http"
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// A gate is one of the things of a zone that may stand in a request's way: a ban, slots and
// limits. Bandwidth slows the response only.

// An ending is why a request ends.
type ending uint8

const (
	endsDenied ending = iota // by this zone or another one, or by a matcher's error
	endsBanned               // so that it counts nowhere
	endsGone                 // in a queue
)

// Bans of keys that were denied too often. All zones of a handler are asked for bans before any is
// asked for its limits, so a request during a ban counts nowhere. One that only Redis knows of is
// found when a zone is asked in which Redis decides: then the zones before it refund all they gave.

// askBans asks the zones that are enforced for the request's keys for bans.
func (e *Evaluation) askBans(zones []*Zone, r *http.Request, counted []string) error {
	for _, z := range zones {
		if z.Banning == nil || z.Banning.Set.IsEmpty() {
			continue
		}
		ok, excepted, err := z.Selects(r, counted)
		if err != nil {
			return err
		}
		if !ok || excepted {
			continue
		}
		start := len(e.keys)
		buffer, _, none := z.AppendKey(e.keys, r, reqkey.Vars(r))
		e.keys = buffer[:start]
		raw := buffer[start:]
		if none || !z.EnforcesRaw(raw) {
			continue
		}
		if rest := z.restOf(raw, false, e.Now); rest > 0 {
			p := check{Zone: z, decision: banned, wait: rest}
			p.ask.Raw, e.keys = raw, buffer
			e.checks = append(e.checks, p)
			e.Denied, e.Denial.Reason, e.Denial.Wait = true, answer.Banned, max(e.Denial.Wait, rest)
		}
	}
	return nil
}

// askBan asks for the ban of a key that the zone is not enforced for.
func askBan(e *Evaluation, p *check) decision {
	if p.shadow {
		if p.wait = p.restOf(p.ask.Raw, true, e.Now); p.wait > 0 {
			return banned
		}
	}
	return admits
}

// restOf returns how much longer a key is banned at now, or would be in shadow mode. That an
// operator denies all of its requests goes first.
func (z *Zone) restOf(raw []byte, shadow bool, now int64) (rest time.Duration) {
	b := z.Banning
	if b == nil {
		return 0
	}
	id := z.IDOf(raw)
	if rest = b.Set.Rest(id, now); shadow {
		rest = max(rest, b.Shadow.Rest(id, now))
	}
	if rest > 0 {
		z.nameBanned(id, raw)
		if o := z.Override(keys.KeyOf(raw), raw); o != nil && o.Deny {
			return 0
		}
	}
	return rest
}

// nameBanned has the text of a banned key be there for people, where the log may have it too.
func (z *Zone) nameBanned(id keys.ID, raw []byte) {
	if !z.LogKeys {
		return
	}
	text := func() string { return z.Template.Text(raw) }
	z.Banning.Set.Name(id, text)
	z.Banning.Shadow.Name(id, text)
}

// Bandwidth decides nothing: so it holds whatever happens to Redis, and with a zone that has no
// limit.

// slows reports whether a zone slows the responses of a key, for which an operator has set by: not
// where it is not enforced for the key, and not where that is unlimited.
func (z *Zone) slows(shadow bool, by *control.Override) bool {
	return z.Throttle != nil && !shadow && (by == nil || !by.Unlimited)
}

// holdBandwidth has the response to an admitted request wait for its turns.
func holdBandwidth(p *check, h *Held) {
	if !p.slows(p.shadow, p.override) {
		return
	}
	z, key := p.Zone, p.ask.Key
	h.Wrap(func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
		slowed, overflow := z.Throttle.Throttle(w, r, key)
		if overflow {
			z.Notices.Full(&z.Settings, z.Once, z.Logger)
		}
		if slowed == nil {
			return w
		}
		h.OnEnd(slowed.Close)
		return slowed
	})
}
