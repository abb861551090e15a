package limits

import (
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/metrics"
)

// Enforcement returns for which keys the zone is enforced: what an operator has said at run time,
// else what the configuration says. Requests go by this and nothing else.
func (z *Zone) Enforcement() config.Enforcement {
	if atRuntime := z.AtRuntime.Load(); atRuntime != nil && atRuntime.Enforce != nil {
		return *atRuntime.Enforce
	}
	return z.Enforce
}

// EnforcesRaw reports whether the zone denies requests of a key, or is in shadow mode for it. raw
// is empty for a request without a key: these are in or out together.
func (z *Zone) EnforcesRaw(raw []byte) bool {
	e := z.Enforcement()
	return e.IsFull() || !e.IsOff() && e.Includes(z.IDOf(raw), z.salt)
}

// Override returns what an operator has set for a key at run time, nil for nothing. It costs an
// atomic load where no zone has any.
func (z *Zone) Override(hash keys.Key, raw []byte) *control.Override {
	if rules := z.AtRuntime.Load(); rules != nil {
		if z.Dry != nil {
			return rules.OverrideOf(z.Dry.ID, z.Dry.Raw)
		}
		return rules.Override(hash, raw)
	}
	return nil
}

// FromAuthentication returns a placeholder in the zone's key or limits that comes from
// authentication, without its braces; "" for none.
func (z *Zone) FromAuthentication() string {
	for i := range z.AllLimits {
		if n := z.AllLimits[i].Number; n != nil && n.IsOfAuthentication() {
			return n.Name()
		}
	}
	return z.Template.AuthenticationIn()
}

// DefaultOf counts a request that brings no number, and returns the default.
func (z *Zone) DefaultOf(l *Limit, text string) int64 {
	z.Decisions.CountEvent(metrics.LimitDefault)
	if text != "" && !l.Warned.Load() && !l.Warned.Swap(true) {
		noticeValue(&z.Settings, l.Rate, text, z.LogKeys, z.Once, z.Logger)
	}
	return l.Rate.Limit
}

// IDOf returns the ID of a key.
func (z *Zone) IDOf(raw []byte) keys.ID {
	if z.Dry != nil {
		return z.Dry.ID
	}
	return keys.IDOf(raw)
}
