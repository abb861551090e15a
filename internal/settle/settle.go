// Package settle ends what a request has reserved, when its response begins: it stays spent if the
// response is one that counts, and is refunded if not.
package settle

import (
	"math"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/counters"
	"github.com/caddy-tide/ratelimit/internal/held"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/unsettled"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// A Unit is what a request has reserved in one limit; in a zone that Redis decides for, in all of
// its limits. It holds its counters.
type Unit struct {
	// Responses are those that count.
	Responses *caddyhttp.ResponseMatcher
	Key       table.Key
	// By has what is Held, nil where Redis decided.
	By   counters.Settler
	Held table.Reserved
	// Redis has granted Grant.
	Redis *strict.Limiter
	Grant strict.Grant

	noted []noted // for each limit in Redis
}

// noted is a unit in Redis that counts until an instant.
type noted struct {
	in    *unsettled.Register
	group *unsettled.Group // nil in windows, of which Redis knows what is reserved
	until int64
}

// Note adds a limit of those that Redis decided on, in which the unit counts until an instant. What
// was noted of it there has the number of the call.
func (u *Unit) Note(in *unsettled.Register, call, until, window int64) {
	u.noted = append(u.noted, noted{in, in.Find(u.Key, uint32(call), until, window), until})
}

// Settle ends what is reserved. Where nobody knows the status, the unit stays spent: otherwise a
// guess would be free for a client that does not wait for the answer.
func (u *Unit) Settle(r held.Response) {
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
func (u *Unit) RollBack() {
	u.remove()
	u.Redis.Refund(u.Grant)
}

func (u *Unit) remove() {
	for _, n := range u.noted {
		n.in.Remove(u.Key, n.group)
	}
}

// DeniesReserved reports whether a bucket or log in Redis, which has denied in the call seq at now,
// would admit if all were refunded that this node has reserved. The call has granted some to other
// requests, which may not have been noted yet. reports tell what is used.
func DeniesReserved(in *unsettled.Register, l algorithms.Limit, key table.Key, now, seq, granted int64, reports []algorithms.Report) bool {
	noted, _ := in.In(key, seq)
	sum, used := in.Sum(key, now, math.MaxInt64)+max(0, granted-noted), int64(0)
	for _, r := range reports {
		used = max(used, r.Remote, int64(math.Ceil(r.Level)))
	}
	return sum > 0 && used-sum < l.Size && l.N > 0
}
