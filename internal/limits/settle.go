package limits

import (
	"math"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/counters"
	"github.com/caddy-tide/ratelimit/internal/held"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/unsettled"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// Zones with count_responses reserve a unit for each request, and settle it when its response
// begins: it stays spent if the response is one that counts, and is refunded if not.

// Hold returns what an admitted request holds until its response begins or its handler has
// returned, nil for nothing. It does not refer to the Evaluation.
func (e *Evaluation) Hold() *held.Held {
	if !e.holds {
		return nil
	}
	h := new(held.Held)
	if units := e.reserved(); len(units) > 0 {
		h.OnBegin(func(r held.Response) {
			for i := range units {
				units[i].settle(r)
			}
		})
	}
	e.holdThrottles(h)
	return h
}

// reservedUnit is what a request has reserved in one limit; in a zone that Redis decides for, in
// all of its limits. It holds its counters.
type reservedUnit struct {
	zone *Zone
	key  table.Key
	by   counters.Settler
	unit table.Reserved
	// grant is what Redis granted, and noted what is noted of it here, a part for each limit.
	grant grant
	noted []notedUnit
}

// notedUnit is a unit in Redis that counts until an instant.
type notedUnit struct {
	in    *unsettled.Register
	group *unsettled.Group // nil in windows, of which Redis knows what is reserved
	until int64
}

// settle ends what is reserved. Where nobody knows the status, the unit stays spent: otherwise a
// guess would be free for a client that does not wait for the answer.
func (u *reservedUnit) settle(r held.Response) {
	refunds := r.Status != 0 && !u.zone.CountResponses.Match(r.Status, r.Header)
	now := r.At
	if now == 0 {
		now = clock.Now()
	}
	if u.by != nil {
		u.by.Settle(u.key, u.unit, now, refunds)
		return
	}
	for _, n := range u.noted {
		n.in.Remove(u.key, n.group)
	}
	u.grant.by.Settle(u.grant.Grant, refunds, func(rule int) bool { return now < u.noted[rule].until })
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
				units = append(units, reservedUnit{zone: zr.Zone, key: zr.hash, by: l.Settler, unit: unit})
			}
		}
	}
	return units
}

// reservedInRedis returns what a zone has reserved that Redis decides for.
func (e *Evaluation) reservedInRedis(zr *zoneResult) reservedUnit {
	u := reservedUnit{zone: zr.Zone, key: zr.hash, grant: e.grants[zr.grant]}
	seq, _ := u.grant.Call()
	for i := range zr.limits {
		l, n := &zr.limits[i], notedUnit{until: e.until(zr, i)}
		n.in = l.Settler.Unsettled()
		n.group = n.in.Find(zr.hash, uint32(seq), n.until, l.Enforced.Window)
		u.noted = append(u.noted, n)
	}
	return u
}

// until is when the unit that Redis has granted in a limit ends to count. e.asked is after that, so
// no unit is refunded that has ended.
func (e *Evaluation) until(zr *zoneResult, limit int) int64 {
	return e.grants[zr.grant].came + int64(e.receipts[zr.first+limit].Reset)
}

// noteGrant notes what Redis has said of a request in a zone that reserves. Of windows Redis itself
// knows what all nodes have reserved. Of buckets and logs this node notes what it has; a call for
// several requests may have granted units to others that have not come that far.
func (e *Evaluation) noteGrant(zr *zoneResult, verdicts []strict.Verdict) {
	e.holds = true
	g := &e.grants[zr.grant]
	seq, granted := g.Call()
	for i := range zr.limits {
		l := &zr.limits[i]
		switch {
		case zr.Kind.Windowed():
			g.reserves(i, verdicts[i].Reserved)
		case g.Admitted():
			l.Settler.Unsettled().Add(zr.hash, seq, e.until(zr, i), l.Enforced.Window)
		default:
			others, _ := l.Settler.Unsettled().In(zr.hash, seq)
			sum := l.Settler.Unsettled().Sum(zr.hash, g.came, math.MaxInt64) + max(0, granted-others)
			g.reserves(i, sum > 0 && usedIn(verdicts[i].Reports)-sum < l.Enforced.Size && l.Enforced.N > 0)
		}
	}
}

// usedIn returns what is used of a bucket or log as Redis reports it.
func usedIn(reports []algorithms.Report) (used int64) {
	for _, r := range reports {
		used = max(used, r.Remote, int64(math.Ceil(r.Level)))
	}
	return used
}

// reserves notes of a limit that it denies only as something is reserved.
func (g *grant) reserves(limit int, only bool) {
	if only {
		g.reserved |= 1 << limit
	}
}

// keepReserved settles what a request has reserved that ends without a response.
func (e *Evaluation) keepReserved() { e.settleReserved(held.Response{}) }

func (e *Evaluation) settleReserved(r held.Response) {
	if !e.holds {
		return
	}
	for _, u := range e.reserved() {
		u.settle(r)
	}
}

// refundInRedis refunds what Redis has granted to a zone that reserves, as another one denies.
func (e *Evaluation) refundInRedis(zr *zoneResult) {
	u := e.reservedInRedis(zr)
	for _, n := range u.noted {
		n.in.Remove(u.key, n.group)
	}
	u.grant.by.Refund(u.grant.Grant)
}

// reserves returns what a zone asks for with a unit, if responses decide whether it counts.
func (z *Zone) reserves() algorithms.Want {
	if z.CountResponses == nil {
		return 0
	}
	return table.Reserve | algorithms.WantReset
}

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
