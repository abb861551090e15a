package limits

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// Zones with count_responses reserve what a request takes, and settle it when its response begins:
// it stays spent if the response is one that counts, and is refunded if not. Those with
// response_cost settle it to what the response says, see settlement.go.

// reservedUnits returns what limits of a zone have reserved for a request of a key, nothing where
// the zone counts whatever the response is.
func (z *Zone) reservedUnits(limits []Limit, took []table.Taken, key keys.Key) (units []reservedUnit) {
	if !z.Settles() {
		return nil
	}
	for i := range limits {
		l := &limits[i]
		units = append(units, reservedUnit{zone: z, key: key, by: l.Table, reserved: l.Table.ReservationOf(l.Effective, key, took[i])})
	}
	return units
}

// A reservedUnit is what a request has reserved in one limit. It holds its counters.
type reservedUnit struct {
	zone     *Zone
	key      keys.Key
	by       Table
	reserved table.Reserved
}

// Settle ends what is reserved by whether the response counts.
func (u *reservedUnit) Settle(counts bool, now int64) {
	m := int64(0)
	if counts {
		m = u.reserved.N
	}
	u.settle(m, now)
}

// settle settles what is reserved to m units, at now, or where that is 0 as the clock says.
func (u *reservedUnit) settle(m, now int64) {
	u.by.Settle(u.key, u.reserved, cmp.Or(now, clock.Now()), m)
	for i := range u.zone.AllLimits {
		if l := &u.zone.AllLimits[i]; l.Table == u.by && l.IsSynced(u.zone.Redis) {
			l.Syncer.PushLate()
		}
	}
}

// forgive clears what a key has spent in all limits of the zone, whose request came at since, where
// its response is one that forgives. What else of the key is under way is forgiven with it. HEAD
// and OPTIONS log nobody in.
func (z *Zone) forgive(key keys.Key, since int64, r Response) {
	if r.Status == 0 || !z.ForgiveResponses.Match(r.Status, r.Header) {
		return
	}
	switch q := r.Request; {
	case q == nil:
	case q.Method == http.MethodHead || q.Method == http.MethodOptions:
		return
	case q.Method == http.MethodGet:
		z.Once.Warn(z.Logger, warning.ForgivesGuesser, fmt.Sprintf("zone %q: a GET has cleared a count; if that page needs no account, guessers clear theirs by it: "+
			"add `not method GET` to the zone's `match`", z.Name))
	}
	for l := range z.Each {
		l.Table.ForgiveKey(key, since, cmp.Or(r.At, clock.Now()))
		if l.IsSynced(z.Redis) {
			l.Syncer.PushLate()
		}
	}
}
