package limits

import (
	"net/http"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// A check is what one zone does with a request.
type check struct {
	*Zone
	// ask is what the zone's tables are asked: the key, its bytes, and how many units; and when it
	// was.
	ask table.Ask
	// override is what an operator has set for the key. limits are those of the request: the
	// zone's, its own, or this node's share of them.
	override *control.Override
	limits   []Limit
	// rank orders zones in which Redis decides.
	rank int64
	// empty is set where the template made no key, shadow where the zone is not enforced for it.
	empty, shadow bool
	// decision is what the zone decided. wait is how long it has the client wait.
	decision decision
	wait     time.Duration
	// begins is how long a ban lasts that begins with the request, 0 for none.
	begins time.Duration
	// first is the place in taken of what the limits gave. That of a slot comes before it; slot
	// is one more than its place in slots, 0 for none.
	first, slot int
	// byRedis is set where Redis has decided on the request's limits, in this call or one before.
	byRedis bool
	toAsk   *strict.Request // see request
}

// A decision is what one zone decides on a request.
type decision uint8

const (
	// admits has taken what the request asks for. peeked has only read its queues, which have room.
	admits decision = iota
	peeked
	// slows only slows the response, and skips does nothing.
	slows
	skips
	// denies has a limit or slots without room; awaitsRefund has some as soon as responses begin
	// that don't count.
	denies
	awaitsRefund
	// tooLarge has limits that never admit what the request costs.
	tooLarge
	// The others ask no limit: the request has no key, Redis is unavailable, an operator denies all
	// requests of the key, or it is banned.
	noKey
	unavailable
	barred
	banned
)

// isByLimits reports whether limits or slots decided.
func (d decision) isByLimits() bool {
	switch d {
	case admits, peeked, denies, awaitsRefund, tooLarge:
		return true
	}
	return false
}

// isDenial reports whether the request does not pass the zone.
func (d decision) isDenial() bool {
	switch d {
	case admits, peeked, slows, skips:
		return false
	}
	return true
}

// reason returns what metrics say of a denial.
func (d decision) reason() answer.Reason {
	switch d {
	case awaitsRefund:
		return answer.Reserved
	case tooLarge:
		return answer.TooLarge
	}
	return answer.Denied
}

// addCheck appends the check of a zone that has just matched: its key, and its limits. Where
// another zone has denied the request and this one is strict, Redis will not be asked, so a limit
// that is no number is not warned of.
func (e *Evaluation) addCheck(checks []check, z *Zone, r *http.Request) []check {
	start, p, none := len(e.keys), oneMore(&checks), false
	*p = check{}
	vars := reqkey.Vars(r)
	e.keys, p.empty, none = z.AppendKey(e.keys, r, vars)
	p.Zone, p.ask.Raw, p.ask.N = z, e.keys[start:], 1
	if z.cost != nil {
		p.ask.N = z.costOf(r, vars)
	}
	if none {
		p.decision = noKey
		return checks
	}
	if p.ask.Key = keys.KeyOf(p.ask.Raw); z.Dry != nil {
		p.ask.Key = z.Dry.Hash
	}
	p.limits = z.AllLimits
	if z.AtRuntime.Load() != nil {
		if p.override = z.Override(p.ask.Key, p.ask.Raw); p.override != nil && z.LogKeys {
			raw := p.ask.Raw
			p.override.Name(func() string { return z.Template.Text(raw) })
		}
	}
	switch {
	case p.override != nil && p.override.Deny:
		p.decision = barred
	case p.override != nil || z.Varies || z.ClassMatchers != nil:
		p.limits, e.perRequest = z.limitsOf(e.perRequest, r, p.override, !e.Denied || !z.IsStrict())
	}
	return checks
}

// An Outcome is what an Evaluation says of one zone.
type Outcome struct {
	// Denied is set where a limit denies, or would in Shadow mode.
	Denied, Shadow bool
	// Why is what metrics say of a denial: Reserved where the limit denies only until others get
	// back what they have reserved, TooLarge where it never admits what the request costs.
	Why answer.Reason
	// Outright is set where it denies without asking its limits, or would in Shadow mode. Rest is
	// how much longer the key is banned, 0 where it is not.
	Outright bool
	Rest     time.Duration
	// Limits are those that the request goes by, and Results what they decided.
	Limits  []Limit
	Results []answer.Result
	// N is how many units the request asked for.
	N int64
	// Key is the bytes of the key, and Hash their keys.KeyOf.
	Key  []byte
	Hash keys.Key
	// Taken is how what may run at once stands with the request, and SlotResult what was decided.
	Taken      TakenSlot
	SlotResult answer.Result
}

// Of returns what was decided in a zone; ok is false where its limits were not asked.
func (e *Evaluation) Of(z *Zone) (o Outcome, ok bool) {
	for i := range e.checks {
		p := &e.checks[i]
		if p.Zone != z {
			continue
		}
		o = Outcome{Shadow: p.shadow, Key: p.ask.Raw, Hash: p.ask.Key, N: p.ask.N}
		if !p.decision.isByLimits() {
			if o.Outright = p.decision.isDenial(); p.decision == banned {
				o.Rest = p.wait
			} else if !p.shadow && p.decision != barred {
				o.Key = nil // and the last such zone answers for all
				o.Outright = o.Outright && !slices.ContainsFunc(e.checks[i+1:], func(later check) bool {
					return !later.shadow && (later.decision == noKey || later.decision == unavailable)
				})
			}
			continue
		}
		o.Denied, o.Why = p.decision.isDenial(), p.decision.reason()
		results := e.Results()
		o.Limits, o.Results = p.limits, results[p.first:p.first+len(p.limits)]
		if p.slot > 0 {
			o.Taken, o.SlotResult = e.slots[p.slot-1], results[p.first-1]
		}
		return o, true
	}
	return o, false
}

// noticeKey warns of a key that several clients share, as it is empty or ambiguous.
func (z *Zone) noticeKey(empty bool) {
	if empty {
		z.Notices.Empty(&z.Settings, z.Once, z.Logger)
	} else {
		z.Notices.Ambiguous(&z.Settings, z.Once, z.Logger)
	}
}
