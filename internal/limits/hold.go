package limits

import (
	"time"

	"github.com/caddy-tide/ratelimit/sync/strict"
)

// Zones with count_responses reserve a unit for each request, and settle it when its response
// begins: it stays spent if the response is one that counts, and is refunded if not.

// Hold returns what an admitted request holds until its response begins or its handler has
// returned, nil for nothing. It does not refer to the Evaluation.
func (e *Evaluation) Hold() *Held {
	if !e.holds {
		return nil
	}
	return e.hold()
}

func (e *Evaluation) hold() *Held {
	h := new(Held)
	if units := e.reserved(); len(units) > 0 {
		h.OnBegin(func(r Response) {
			for i := range units {
				units[i].Settle(r)
			}
		})
	}
	e.holdSlots(h)
	e.holdThrottles(h)
	return h
}

// reserved returns what a request has reserved. A zone that would have denied it has refunded that.
func (e *Evaluation) reserved() (units []reservedUnit) {
	for i := range e.zones {
		zr := &e.zones[i]
		switch {
		case zr.CountResponses == nil || zr.denied:
		case zr.strict:
			units = append(units, e.reservedInRedis(zr))
		default:
			for j := range zr.limits {
				l := &zr.limits[j]
				unit := l.Settler.Hold(l.Enforced, zr.hash, e.receipts[zr.first+j])
				units = append(units, reservedUnit{Responses: zr.CountResponses, Key: zr.hash, By: l.Settler, Held: unit})
			}
		}
	}
	return units
}

// reservedInRedis returns what a zone has reserved that Redis decides for.
func (e *Evaluation) reservedInRedis(zr *zoneResult) reservedUnit {
	g := &e.grants[zr.grant]
	u := reservedUnit{Responses: zr.CountResponses, Key: zr.hash, Redis: g.by, Grant: g.Grant}
	seq, _ := g.Call()
	for i := range zr.limits {
		l := &zr.limits[i]
		u.Note(l.Settler.Unsettled(), seq, e.until(zr, i), l.Enforced.Window)
	}
	return u
}

// until is when the unit that Redis has granted in a limit ends to count, by this node's clock. It
// is reckoned from when Redis was asked, as what has drained by then may be spent by others.
func (e *Evaluation) until(zr *zoneResult, limit int) int64 {
	return e.grants[zr.grant].asked + int64(e.receipts[zr.first+limit].Reset)
}

// noteGrant notes what Redis has said of a request in a zone that reserves. Of windows Redis itself
// knows what all nodes have reserved. Of buckets and logs this node notes what it has; a call for
// several requests may have granted units to others that have not come that far.
func (e *Evaluation) noteGrant(zr *zoneResult, verdicts []strict.Verdict) {
	e.holds = true
	g := &e.grants[zr.grant]
	seq, granted := g.Call()
	for i := range zr.limits {
		l, only := &zr.limits[i], verdicts[i].Reserved
		switch in := l.Settler.Unsettled(); {
		case zr.Kind.Windowed():
		case g.Admitted():
			in.Add(zr.hash, seq, e.until(zr, i), l.Enforced.Window)
			in.Drain(zr.hash, l.Enforced.N, e.until(zr, i))
		default:
			in.Drain(zr.hash, l.Enforced.N, e.until(zr, i))
			only = deniesReserved(in, l.Enforced, zr.hash, g.came, seq, granted, verdicts[i].Reports)
		}
		if only {
			g.reserved |= 1 << i
		}
	}
}

// keepReserved settles what a request has reserved that ends without a response.
func (e *Evaluation) keepReserved() {
	for _, u := range e.reserved() {
		u.Settle(Response{})
	}
}

// refundInRedis refunds what Redis has granted to a zone that reserves, as another one denies.
func (e *Evaluation) refundInRedis(zr *zoneResult) { u := e.reservedInRedis(zr); u.RollBack() }

// reservedWait is what a client is told that is denied as others have reserved what is left. Their
// responses may begin at any time.
const reservedWait = time.Second

// isReserved reports whether a limit that denied would admit the request if all that is reserved
// were refunded.
func (e *Evaluation) isReserved(zr *zoneResult, limit int) bool {
	if zr.CountResponses == nil {
		return false
	}
	if zr.strict {
		return e.grants[zr.grant].reserved>>limit&1 != 0
	}
	l := &zr.limits[limit]
	return l.Settler.AdmitsSettled(l.Enforced, zr.hash, e.now)
}
