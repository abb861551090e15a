package limits

import (
	"math"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// Zones with count_responses reserve what a request takes, and settle it when its response begins:
// it stays spent if the response is one that counts, and is refunded if not. Those with
// response_cost settle it to what the response says, see settlement.go.

// reservedUnits returns what limits of a zone have reserved for a request of a key, nothing where
// the zone counts whatever the response is.
func (z *Zone) reservedUnits(limits []Limit, took []table.Taken, g strict.Grant, key keys.Key) (units []reservedUnit) {
	switch {
	case !z.Settles():
	case g.By != nil:
		// It is reckoned from when Redis was asked, as what has drained by then may be spent by
		// others.
		u := reservedUnit{zone: z, Key: key, Grant: g}
		for i := range limits {
			l := &limits[i]
			top := int64(0)
			if z.Reserving&table.InParts != 0 {
				top = took[i].Top
			}
			u.Note(l.Table, l.Enforced, g.Seq, g.Asked+int64(took[i].Reset), top)
		}
		units = append(units, u)
	default:
		for i := range limits {
			l := &limits[i]
			held := l.Table.Hold(l.Enforced, key, took[i])
			units = append(units, reservedUnit{zone: z, Key: key, By: l.Table, Held: held})
		}
	}
	return units
}

// noteReserved notes what Redis has said of a request in a zone that reserves. Of cells Redis
// itself knows what all nodes have reserved. Of buckets this node notes what it has; a
// call for several requests may have granted units to others that have not come that far.
func (z *Zone) noteReserved(limits []Limit, key keys.Key, n int64, answers []strict.Verdict, g strict.Grant) {
	if !z.Settles() || !z.Kind.Traits().Draining {
		return
	}
	came := clock.Now()
	for i := range limits {
		l, v := &limits[i], &answers[i]
		in, until := l.Table.Unsettled(), g.Asked+int64(v.Decision.Reset)
		if g.Admitted() {
			in.Add(key, n, g.Seq, until, l.Enforced.Window)
		}
		in.Drain(key, l.Enforced.N, until)
		if g.Admitted() || l.Enforced.N <= 0 {
			continue
		}
		// It is denied by what is reserved where Redis would admit it if all were refunded that
		// this node has reserved. The call has granted some to others, which may not be noted yet.
		noted, _ := in.In(key, g.Seq)
		sum, used := in.Sum(key, came, math.MaxInt64)+max(0, g.Granted-noted), int64(0)
		for _, r := range v.Reports {
			used = max(used, r.Remote, int64(math.Ceil(r.Level)))
		}
		v.Reserved = sum > 0 && used-sum+n <= l.Enforced.Size
	}
}

// A reservedUnit is what a request has reserved in one limit; in a zone that Redis decides for, in
// all of its limits. It holds its counters.
type reservedUnit struct {
	zone *Zone
	Key  keys.Key
	// By has what is Held, nil where Redis decided.
	By   Table
	Held table.Reserved
	// Grant is what Redis granted.
	Grant strict.Grant

	noted []notedUnit // for each limit in Redis
}

// notedUnit is what is reserved in a limit in Redis, and counts until an instant.
type notedUnit struct {
	by    Table // the node's own counter
	limit algorithms.Limit
	group *table.UnsettledGroup // nil in windows, of which Redis knows what is reserved
	until int64
	top   int64 // where it is in a bucket
}

// Note adds a limit of those that Redis decided on, in which what is reserved counts until an
// instant. What was noted of it there has the number of the call.
func (u *reservedUnit) Note(by Table, l algorithms.Limit, call, until, top int64) {
	u.noted = append(u.noted, notedUnit{by, l, by.Unsettled().Find(u.Key, uint32(call), until, l.Window), until, top})
}

// Settle ends what is reserved by whether the response counts.
func (u *reservedUnit) Settle(counts bool, at int64) {
	m := int64(0)
	if counts {
		m = u.n()
	}
	u.settle(m, at)
}

// n is how many units are reserved.
func (u *reservedUnit) n() int64 {
	if u.By != nil {
		return u.Held.N
	}
	return u.Grant.N
}

// settle settles what is reserved to m units, now where at is 0. While Redis can't be asked this
// node's own counters are charged: Redis learns of it with what they decide.
func (u *reservedUnit) settle(m, at int64) {
	if at == 0 {
		at = clock.Now()
	}
	if u.By != nil {
		u.By.Settle(u.Key, u.Held, at, m)
		if u.zone.asksCells() {
			for i := range u.zone.AllLimits {
				if l := &u.zone.AllLimits[i]; l.Table == u.By {
					l.Source.SayLate()
				}
			}
		}
		return
	}
	redis := u.Grant.By
	if m > u.n() && redis.Unavailable(u.Grant) != nil && redis.IsUpToDate(u.Grant) {
		for _, n := range u.noted {
			n.by.Charge(n.limit, u.Key, at, m-u.n())
		}
		m = u.n()
	}
	tops := make([]int64, len(u.noted))
	for i, n := range u.noted {
		if tops[i] = n.top; at >= n.until || n.by.Unsettled().Ended(u.Key, n.group, at) {
			tops[i] = strict.Over
		}
	}
	redis.Settle(u.Grant, m, tops, hears(u.Key, u.Grant, u.noted))
	u.remove()
}

// RollBack refunds what Redis has granted, as another zone denies the request.
func (u *reservedUnit) RollBack() {
	u.remove()
	u.Grant.By.Refund(u.Grant, hears(u.Key, u.Grant, u.noted))
}

func (u *reservedUnit) remove() {
	for _, n := range u.noted {
		n.by.Unsettled().Remove(u.Key, n.group, u.Grant.N)
	}
}
