package limits

import (
	"net/http"
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// record counts and logs a request in the zones that denied it, or would have in shadow mode, and
// notes what is to be answered. A request of a key that is banned is only counted: the ban had a
// line when it began.
func (e *Evaluation) record(r *http.Request) {
	e.Denial.Now = e.Now
	if e.Denial.Reason == answer.Banned {
		rest := time.Duration(0)
		for i := range e.checks {
			p := &e.checks[i]
			if p.decision != banned || p.shadow {
				continue
			}
			if p.wait > rest {
				rest, e.Denial.Zone, e.Denial.Who = p.wait, p.Name, p.who(p.ask.Raw)
			}
			p.countDenial(answer.Banned, p.ask.Raw, p.ask.Key.A, e.Now, false)
		}
		return
	}
	var began *check // a zone in which a ban begins
	for i := range e.checks {
		p := &e.checks[i]
		if !p.decision.isByLimits() {
			continue
		}
		if e.Denied {
			e.noticeOverflow(p)
		}
		if p.decision.isDenial() {
			e.recordDenial(p, r)
			if p.begins > 0 && !p.shadow && (began == nil || p.begins >= began.begins) {
				began = p
			}
		}
	}
	for i := range e.checks {
		p := &e.checks[i]
		if !p.decision.isDenial() || p.decision.isByLimits() {
			continue
		}
		wait := p.recordUnasked(p.decision, p.wait, e.Now, answer.LoggedDenial{Request: r, Key: p.ask.Raw, Hash: p.ask.Key.A, Shadow: p.shadow})
		if p.shadow {
			e.WouldDeny.Note(p.Name, p.who(p.ask.Raw), wait)
		}
	}
	if e.Denied {
		e.Denial.Reason, e.Denial.Results = answer.Denied, e.Results()
		e.blame(r, began)
	}
}

// who is a key of the zone, for events.
func (z *Zone) who(raw []byte) answer.Who { return answer.Who{Key: raw, Shown: z.Denials.Keys} }

// recordDenial counts and logs a request in a zone that denied it, or would have. A ban may begin.
func (e *Evaluation) recordDenial(p *check, r *http.Request) {
	p.countDenial(p.decision.reason(), p.ask.Raw, p.ask.Key.A, e.Now, p.shadow)
	if p.cost != nil && p.decision != tooLarge && !p.shadow {
		p.Decisions.CountUnits(metrics.UnitsDenied, p.ask.N)
	}
	line := p.Denials.Count(e.Now, p.ask.Key.A, p.shadow)
	// A limit is spent that has denied by what is known for certain: not by an estimate, by a
	// counter that others share, or by a part of it.
	isSpent := false
	for i := range p.limits {
		t := &e.taken[p.first+i]
		isSpent = isSpent || !t.Allowed && !t.Estimated && !t.Overflow && !p.limits[i].IsDivided()
	}
	if isSpent && p.Banning != nil && p.decision == denies {
		p.begins = p.towardsBan(&p.ask, e.Now, p.shadow)
	}
	if !line && p.begins == 0 && !p.shadow {
		return
	}
	logged := answer.LoggedDenial{Request: r, Key: p.ask.Raw, Hash: p.ask.Key.A, Shadow: p.shadow}
	if p.cost != nil {
		logged.Cost = p.ask.N
	}
	results := e.Results()[p.first-min(p.slot, 1) : p.first+len(p.limits)]
	var longest *answer.Result // that makes the client wait longest
	for i := range results {
		if d := &results[i]; !d.Allowed && (longest == nil || d.RetryAfter >= longest.RetryAfter) {
			longest = d
		}
		logged.Wait = max(logged.Wait, results[i].RetryAfter)
	}
	logged.Limit = longest.Limit
	if line {
		p.Denials.WriteLine(e.Now, logged)
		why := p.decision.reason()
		if p.shadow {
			why = answer.WouldDeny
		}
		p.Decisions.Show(why, p.IDOf(p.ask.Raw))
	}
	if p.begins > 0 {
		p.nameBanned(p.IDOf(p.ask.Raw), p.ask.Raw)
		p.Denials.Banned(logged, p.begins)
	}
	if p.shadow {
		e.WouldDeny.Note(p.Name, p.who(p.ask.Raw), logged.Wait)
	}
}

// keylessWait is how long a client waits at most that is denied as it sends no key: it may send one
// at once.
const keylessWait = time.Minute

// blame adds the zone that denies to the denial, and counts and logs it if it did so without
// counting. began is one in which a ban begins, nil for none.
func (e *Evaluation) blame(r *http.Request, began *check) {
	var bars, never, longest, z *check // z: the last that has no key, or whose Redis is unavailable
	lost := false
	for i := range e.checks {
		switch p := &e.checks[i]; {
		case p.shadow:
		case p.decision == barred:
			bars = p
		case p.decision == noKey || p.decision == unavailable:
			z, lost = p, lost || p.decision == unavailable
		case p.decision == tooLarge:
			never = p
		case p.decision.isDenial() && p.decision.isByLimits() && (longest == nil || p.wait > longest.wait):
			longest = p
		}
	}
	d := &e.Denial
	if z != nil && !lost {
		d.Wait = max(d.Wait, min(z.FirstWindow(), keylessWait))
	}
	switch {
	case bars != nil:
		d.Reason, d.Zone, d.Who, d.Wait = answer.Barred, bars.Name, bars.who(bars.ask.Raw), 0
		return
	case began != nil:
		d.Reason, d.Zone, d.Who, d.Begins = answer.Banned, began.Name, began.who(began.ask.Raw), true
		d.Wait = max(d.Wait, began.begins)
		return
	case never != nil:
		d.Reason, d.Zone, d.Who, d.Wait = answer.TooLarge, never.Name, never.who(never.ask.Raw), 0
		d.Cost, d.Most = never.ask.N, mostOf(never.limits)
		return
	case longest != nil:
		if d.Zone, d.Who = longest.Name, longest.who(longest.ask.Raw); longest.cost != nil {
			d.Cost = longest.ask.N
		}
		return
	}
	if d.Zone, d.Who = z.Name, z.who(z.ask.Raw); lost {
		d.Reason, d.Wait = answer.Unavailable, max(d.Wait, time.Second)
	} else {
		z.Denials.Denied(e.Now, answer.LoggedDenial{Request: r, Wait: d.Wait})
	}
	z.Decisions.Count(d.Reason)
}

// recordUnasked counts and logs a request in a zone that denies it without asking its limits, or
// would in shadow mode: then it returns the wait that is told of it. One that is denied as there is
// no key, or as Redis is unavailable, is recorded by who blames the zone for it.
func (z *Zone) recordUnasked(decided decision, rest time.Duration, now int64, d answer.LoggedDenial) (wait time.Duration) {
	switch {
	case decided == barred:
		z.countDenial(answer.Denied, d.Key, d.Hash, now, d.Shadow)
		z.Denials.Denied(now, d)
		return 0
	case !d.Shadow:
		return 0
	case decided == noKey:
		rest, d.Key = min(z.FirstWindow(), keylessWait), nil
		z.Denials.Denied(now, answer.LoggedDenial{Request: d.Request, Wait: rest, Shadow: true})
	case decided == unavailable:
		rest, d.Key = time.Second, nil
	}
	z.countDenial(answer.Denied, d.Key, d.Hash, now, true)
	return rest
}

// countDenial counts a request that is denied for a reason, or would be in shadow mode.
func (z *Zone) countDenial(why answer.Reason, raw []byte, hash uint64, now int64, shadow bool) {
	if shadow {
		why = answer.WouldDeny
	}
	z.Decisions.Count(why)
	if z.DeniedKeys != nil && len(raw) > 0 {
		z.DeniedKeys.add(hash, now, shadow, func() (id keys.ID, text string) {
			if z.LogKeys {
				text = z.Template.Text(raw)
			}
			return z.IDOf(raw), text
		})
	}
}

// towardsBan counts a denied request of a key towards a ban, and returns how long one lasts that
// begins, 0 where none does. In shadow mode it is only noted. The key that ambiguous requests share
// is never banned, as it is nobody's.
func (z *Zone) towardsBan(a *table.Ask, now int64, shadow bool) time.Duration {
	if reqkey.IsAmbiguous(a.Raw) {
		return 0
	}
	return z.Banning.Deny(z.IDOf(a.Raw), a.Key, a.Raw, now, shadow)
}
