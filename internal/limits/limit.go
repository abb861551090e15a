package limits

import (
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A Limit is one limit of a zone, with the counters that it shares with the zones of its name in
// other handlers and configurations.
type Limit struct {
	*Counters

	// Settings are those of the zone, which it has in common with all its limits.
	Settings *config.Settings
	Rate     config.Rate

	// Effective is the limit that is enforced here, and Policy what answers tell of it.
	Effective algorithms.Limit
	Policy    *answer.Policy
	// Number is what the limit of a request comes from, nil where it is the same for all. Warned is
	// set when something came that is no number.
	Number *reqkey.Number
	Warned *atomic.Bool
	// IsOverridden is set where an operator has set another number; replaced is the configured one.
	IsOverridden bool
	// isCached is set where the limit is one of DividedLimits.
	isCached bool
	// excluded are the reserves that are not for the request, one bit each.
	excluded uint32
	replaced int64
	// division is what this side or this node takes of the limit; the zero division is all of it.
	division division
}

// Take asks for n units of a key at now. raw is the bytes of which key is the hash.
func (l *Limit) Take(key keys.Key, raw []byte, now, n int64, want algorithms.Want) table.Taken {
	return l.Table.Take(l.Effective, key, raw, now, n, want)
}

// Decide has t say what is decided on a under the limit. What costs nothing is admitted, however
// the limit stands.
func (l *Limit) Decide(a *table.Ask, want algorithms.Want, t *table.Taken) {
	a.Limit, a.Want = l.Effective, want
	if l.Table.Decide(a, t); a.N == 0 {
		t.Allowed, t.Delay, t.Retry = true, 0, 0
	}
}

// Params describes to its algorithm what is left of the limit for a request, without what is kept
// for others, and of that the part that this node or this side takes.
func (l *Limit) Params() algorithms.Params {
	p := l.Settings.ParamsInPlace(l.Rate, l.replaced, l.excluded)
	if l.division.nodes != 0 {
		p.Limit, p.Burst = l.division.part(p.Limit), l.division.part(p.Burst)
	}
	return p
}

// Without returns the limit as requests see it that these reserves are not for, one bit each.
func (l *Limit) Without(excluded uint32) Limit {
	c := *l
	c.excluded = excluded
	c.Effective = c.Params().Compile()
	return c
}

// IsSynced reports whether the limit's counts are in that Redis as well.
func (l *Limit) IsSynced(redis *Redis) bool { return l.Settings.SyncRate >= 0 && redis != nil }

// With returns the limit with another number of requests: what may come at once is the burst where
// there is one, and else follows the number.
func (l *Limit) With(n int64) Limit {
	c := *l
	c.Rate.Limit = n
	c.Effective = c.Params().Compile()
	return c
}

// Overridden returns the limit with the number that an operator has set.
func (l *Limit) Overridden(n int64) Limit {
	c := *l
	c.IsOverridden, c.replaced = true, c.Rate.Limit
	return c.With(n)
}

// Peek reads a queue that is entered last, unless it has no room for what is asked: then it denies.
func (l *Limit) Peek(a *table.Ask, t *table.Taken) {
	n := a.N
	a.N = 0
	l.Decide(a, 0, t)
	if a.N = n; t.Remaining >= n {
		return
	}
	if l.Decide(a, 0, t); t.Allowed {
		l.Table.Leave(l.Effective, a.Key, *t, a.Now, n) // a place has become free just now
		t.N = 0
	}
}

// Fill has an answer tell of a decision.
func (l *Limit) Fill(d *algorithms.Decision, r *answer.Result) {
	r.Policy = l.Policy
	r.Allowed = d.Allowed
	r.Overridden = l.IsOverridden
	r.Quota = l.Rate.Limit
	r.Limit = l.Effective.N
	r.Size = l.Effective.Size
	r.Remaining = d.Remaining
	r.RetryAfter = d.Retry
	r.MoreAfter = l.MoreAfter(d)
	r.Cost, r.TooLarge, r.Window = 0, false, 0
	if l.excluded != 0 {
		l.shrink(r)
	}
	if l.Policy.Size > 0 {
		l.tellSize(r)
	}
}

// tellSize tells of what may come at once, which is not the limit, and in how long it comes back.
func (l *Limit) tellSize(r *answer.Result) {
	r.Quota = l.Policy.Size
	if l.Policy.Varies || r.Overridden {
		c := l.Settings.ParamsInPlace(l.Rate, l.replaced, l.excluded).Compile()
		r.Quota, r.Window = c.Size, answer.Fill(c.Size, c.N, l.Rate.Window)
	}
}

// shrink tells of the limit without what is reserved for others.
func (l *Limit) shrink(r *answer.Result) {
	r.Overridden = true
	r.Quota = l.Settings.Without(l.excluded, r.Quota)
	if l.Policy.Size == 0 {
		r.Limit = min(r.Limit, r.Quota) // of a bucket, which drains as a whole
	}
}

// MoreAfter returns the one wait that answers tell of a limit that admits.
func (l *Limit) MoreAfter(d *algorithms.Decision) time.Duration {
	if l.Policy.Fixed {
		return d.Reset
	}
	return d.Next
}
