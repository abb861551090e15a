package limits

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/counters"
	"github.com/caddy-tide/ratelimit/internal/held"
	"github.com/caddy-tide/ratelimit/internal/table"
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

// reservedUnit is a unit of one limit that is reserved. It holds its counters.
type reservedUnit struct {
	zone *Zone
	by   counters.Settler
	key  table.Key
	unit table.Reserved
}

// settle ends what is reserved. Where nobody knows the status, the unit stays spent: otherwise a
// guess would be free for a client that does not wait for the answer.
func (u *reservedUnit) settle(r held.Response) {
	counts := r.Status == 0 || u.zone.CountResponses.Match(r.Status, r.Header)
	at := r.At
	if at == 0 {
		at = clock.Now()
	}
	u.by.Settle(u.key, u.unit, at, !counts)
}

// reserved returns the units that a request has reserved. A zone that would have denied it has
// refunded them.
func (e *Evaluation) reserved() (units []reservedUnit) {
	for i := range e.zones {
		zr := &e.zones[i]
		if zr.CountResponses == nil || zr.denied {
			continue
		}
		for j := range zr.limits {
			l := &zr.limits[j]
			units = append(units, reservedUnit{zr.Zone, l.Settler, zr.hash, l.Settler.Hold(l.Enforced, zr.hash, e.receipts[zr.first+j])})
		}
	}
	return units
}

// keepReserved settles what a request has reserved that ends without a response.
func (e *Evaluation) keepReserved() {
	if !e.holds {
		return
	}
	for _, u := range e.reserved() {
		u.settle(held.Response{})
	}
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
func (e *Evaluation) isReserved(zr *zoneResult, l *Limit) bool {
	return zr.CountResponses != nil && l.Settler.AdmitsSettled(l.Enforced, zr.hash, e.now)
}
