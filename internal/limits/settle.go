// What a request has reserved ends when its response begins: it stays spent if the response is one
// that counts, and is refunded if not.

package limits

import (
	"math"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// A reservedUnit is what a request has reserved in one limit; in a zone that Redis decides for, in
// all of its limits. It holds its counters.
type reservedUnit struct {
	// Responses are those that count.
	Responses *caddyhttp.ResponseMatcher
	Key       keys.Key
	// By has what is Held, nil where Redis decided.
	By   Settler
	Held table.Reserved
	// Redis has granted Grant.
	Redis *strict.Limiter
	Grant strict.Grant

	noted []notedUnit // for each limit in Redis
}

// notedUnit is a unit in Redis that counts until an instant.
type notedUnit struct {
	in    *table.Unsettled
	group *table.UnsettledGroup // nil in windows, of which Redis knows what is reserved
	until int64
}

// Note adds a limit of those that Redis decided on, in which the unit counts until an instant. What
// was noted of it there has the number of the call.
func (u *reservedUnit) Note(in *table.Unsettled, call, until, window int64) {
	u.noted = append(u.noted, notedUnit{in, in.Find(u.Key, uint32(call), until, window), until})
}

// Settle ends what is reserved. Where nobody knows the status, the unit stays spent: otherwise a
// guess would be free for a client that does not wait for the answer.
func (u *reservedUnit) Settle(r Response) {
	refunds := r.Status != 0 && !u.Responses.Match(r.Status, r.Header)
	now := r.At
	if now == 0 {
		now = clock.Now()
	}
	if u.By != nil {
		u.By.Settle(u.Key, u.Held, now, refunds)
		return
	}
	u.Redis.Settle(u.Grant, refunds, func(rule int) bool {
		n := &u.noted[rule]
		return now < n.until && !n.in.Ended(u.Key, n.group, now)
	})
	u.remove()
}

// RollBack refunds what Redis has granted, as another zone denies the request.
func (u *reservedUnit) RollBack() {
	u.remove()
	u.Redis.Refund(u.Grant)
}

func (u *reservedUnit) remove() {
	for _, n := range u.noted {
		n.in.Remove(u.Key, n.group)
	}
}

// deniesReserved reports whether a bucket or log in Redis, which has denied in the call seq at now,
// would admit if all were refunded that this node has reserved. The call has granted some to other
// requests, which may not have been noted yet. reports tell what is used.
func deniesReserved(in *table.Unsettled, l algorithms.Limit, key keys.Key, now, seq, granted int64, reports []algorithms.Report) bool {
	noted, _ := in.In(key, seq)
	sum, used := in.Sum(key, now, math.MaxInt64)+max(0, granted-noted), int64(0)
	for _, r := range reports {
		used = max(used, r.Remote, int64(math.Ceil(r.Level)))
	}
	return sum > 0 && used-sum < l.Size && l.N > 0
}
