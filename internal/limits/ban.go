package limits

import (
	"errors"
	"net/http"
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// Bans of keys that were denied too often. All zones of a handler are asked for bans before any is
// asked for its limits, so a request during a ban counts nowhere. One that only Redis knows of is
// found when a zone is asked in which Redis decides: then the zones before it refund all they gave.

// hasBans reports whether a key may be banned in one of the zones.
func hasBans(zones []*Zone) bool {
	for _, z := range zones {
		if z.Banning != nil && !z.Banning.Set.IsEmpty() {
			return true
		}
	}
	return false
}

// askBans asks the zones that are enforced for the request's keys for bans.
func (e *Evaluation) askBans(zones []*Zone, r *http.Request, vars map[string]any, counted []string) error {
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
		keys, _, none := z.AppendKey(e.keys, r, vars)
		e.keys = keys
		k := keyed{Zone: z, key: [2]int{start, len(keys)}, none: none}
		if none || !z.EnforcesRaw(keys[start:]) || !e.findBan(&k, e.now) {
			e.keys = keys[:start]
		}
	}
	return nil
}

// findBan reports whether the key of a zone is banned at now, and notes it. That an operator denies
// all of its requests goes first. The ban of an address holds for early data as well.
func (e *Evaluation) findBan(k *keyed, now int64) bool {
	b := k.Banning
	if b == nil {
		return false
	}
	raw := e.keys[k.key[0]:k.key[1]]
	id := k.IDOf(reqkey.AsProven(raw))
	if k.rest = b.Set.Rest(id, now); k.shadow {
		k.rest = max(k.rest, b.Noted.Rest(id, now))
	}
	if k.rest == 0 {
		return false
	}
	if o := k.Override(keys.KeyOf(raw), raw); o != nil && o.Deny {
		return false
	}
	e.closed = append(e.closed, *k)
	switch {
	case k.shadow:
		e.overShadow = true
	case e.banned == nil || k.rest > e.wait:
		e.denied, e.banned, e.wait = true, k.Zone, k.rest
	}
	return true
}

// mergeBan merges the ban that Redis knows of, if that is what it has answered.
func (zr *zoneResult) mergeBan(err error) bool {
	var banned *strict.Banned
	if err == nil || zr.Banning == nil || !errors.As(err, &banned) {
		return false
	}
	zr.Banning.Set.Ack(clock.Now(), banned.Message, banned.Answer)
	return true
}

// recordBanned counts a request of a key that is banned, and notes what is to be answered. It has
// no line: the ban had one when it began.
func (e *Evaluation) recordBanned() {
	e.denial = answer.Denial{Reason: answer.Banned, Zone: e.banned.Name, Wait: e.wait, Now: e.now, Fields: &e.fields}
	for _, k := range e.closed {
		switch {
		case k.rest == 0 || k.shadow:
		case reqkey.IsUnproven(e.keys[k.key[0]:k.key[1]]):
			e.denial.Reason = answer.TooEarly
			k.Decisions.Count(answer.TooEarly)
		default:
			k.Decisions.Count(answer.Banned)
		}
	}
}

// recordWouldBan counts a request of a key that would be banned, in a zone that is not enforced for
// it.
func (e *Evaluation) recordWouldBan(k keyed) {
	k.Decisions.Count(answer.WouldDeny)
	if !reqkey.IsUnproven(e.keys[k.key[0]:k.key[1]]) {
		e.noteWouldDeny(k.Zone, k.rest)
	}
}

// countDenial counts a denied request towards a ban, and begins that. In shadow mode the ban is
// only noted. The key that ambiguous requests share is never banned, as it is nobody's.
func (e *Evaluation) countDenial(zr *zoneResult, r *http.Request) {
	b, raw := zr.Banning, e.keyOf(zr)
	if b == nil || reqkey.IsAmbiguous(raw) || !e.isSpent(zr) || !b.Deny(zr.IDOf(raw), zr.hash, raw, e.now, zr.shadow) {
		return
	}
	zr.Denials.Banned(e.loggedDenial(zr, r), b.Length)
	if !zr.shadow && b.Length >= e.began {
		e.began, e.beganIn = b.Length, zr.Zone
	}
}

// isSpent reports whether a limit of the zone denied because it is spent: not by what other nodes
// have probably spent, not by what is only reserved, not by a sketch in which others count as well,
// and not by a share of a limit that is whole.
func (e *Evaluation) isSpent(zr *zoneResult) bool {
	for i := range zr.limits {
		if t := &e.receipts[zr.first+i]; !t.Allowed && !t.Estimated && !t.Overflow && !zr.divided && !zr.reserved {
			return true
		}
	}
	return false
}

// ClosedBy returns the key that a zone has denied without asking its limits, or would have in
// shadow mode, and what is left of its ban, 0 where it has none.
func (e *Evaluation) ClosedBy(z *Zone) (key []byte, rest time.Duration, shadow, ok bool) {
	for i := range e.closed {
		if k := &e.closed[i]; k.Zone == z {
			return e.keys[k.key[0]:k.key[1]], k.rest, k.shadow, true
		}
	}
	return nil, 0, false, e.uncounted == z
}
