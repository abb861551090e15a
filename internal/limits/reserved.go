package limits

import (
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
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
		units = append(units, reservedUnit{zone: z, key: key, by: l.Table, held: l.Table.Hold(l.Enforced, key, took[i])})
	}
	return units
}

// A reservedUnit is what a request has reserved in one limit. It holds its counters.
type reservedUnit struct {
	zone *Zone
	key  keys.Key
	by   Table
	held table.Reserved
}

// Settle ends what is reserved by whether the response counts.
func (u *reservedUnit) Settle(counts bool, at int64) {
	m := int64(0)
	if counts {
		m = u.held.N
	}
	u.settle(m, at)
}

// settle settles what is reserved to m units, now where at is 0.
func (u *reservedUnit) settle(m, at int64) {
	if at == 0 {
		at = clock.Now()
	}
	u.by.Settle(u.key, u.held, at, m)
	if !u.zone.IsStrict() {
		return
	}
	for i := range u.zone.AllLimits {
		if l := &u.zone.AllLimits[i]; l.Table == u.by {
			l.Source.SayLate()
		}
	}
}
