package concurrent

import (
	"context"
	"net/http"
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/settings"
	"github.com/caddy-tide/ratelimit/internal/shared"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A Limit is how many requests of a key a zone has running at once.
type Limit struct {
	*Slots

	// Settings are those of the zone.
	Settings *settings.Compiled
	// Policy is what answers tell of it.
	Policy *answer.Policy
	// Max is the number, and IsOverridden is set where an operator has set another one.
	Max          int64
	IsOverridden bool
}

// NewLimit returns the limit of a zone, nil where it has none, and acquires its slots. Answers tell
// of it by these sets of headers.
func NewLimit(z *settings.Compiled, sets answer.HeaderSets) *Limit {
	if z.Concurrent == 0 {
		return nil
	}
	p := answer.Policy{Zone: z.Name, Name: z.Name, Limit: z.Concurrent, Concurrent: true}
	if len(z.Limits) > 0 {
		p.Name += "-concurrent"
	}
	return &Limit{Slots: Acquire(z.Name, z.MaxKeys), Settings: z, Policy: p.Compile(sets), Max: z.Concurrent}
}

// For returns the limit for a key with an override, nil where there is none. The override is about
// it where the zone has no other limit. It may be called on nil.
func (l *Limit) For(o *control.Override) *Limit {
	switch {
	case l == nil || o == nil:
		return l
	case o.Unlimited:
		return nil
	case len(l.Settings.Limits) > 0:
		return l
	}
	c := *l
	c.Max, c.IsOverridden = o.Rate.Limit, true
	return &c
}

// retry is what a denied request is told to wait: nobody knows when one ends that runs.
const retry = time.Second

// A Taken is what was decided for a request, and its slot, if it got one.
type Taken struct {
	gauge.Slot
	gauge.State
	// By is the limit that decided.
	By *Limit
	// Again is set where the request has a slot of the key already, by another handler.
	Again bool
}

// Release frees the slot, unless it is free, was handed over, or is another handler's.
func (t *Taken) Release() {
	t.Free()
	t.Slot = gauge.Slot{}
}

// A Question is what a request asks.
type Question struct {
	Key table.Key
	Raw []byte
	Now int64
	// Nodes is how many nodes share the limit where they can't hear of each other, 1 where each of
	// them has all of it.
	Nodes int64
	// Looks is set where nothing is to change. ByID is set where ID is all that is known of the
	// key.
	Looks, ByID bool
	ID          table.ID
	// Request is the request that asks, nil for none.
	Request *http.Request
}

// Decide gives a slot as far as this node knows. For a look it says what it would have done.
func (l *Limit) Decide(q *Question) (t Taken) {
	a := l.ask(q)
	if l.has(q) {
		return l.again(&a)
	}
	if !q.Looks {
		t.Slot, t.State = l.Table.Take(&a)
		return t
	}
	if t.State = l.Table.Peek(&a); t.Allowed {
		t.Own++
	}
	return t
}

// DecideBy has Redis decide. An error means that it has not.
func (l *Limit) DecideBy(ctx context.Context, redis *shared.Redis, q *Question) (t Taken, err error) {
	a := l.ask(q)
	if l.has(q) {
		return l.again(&a), nil
	}
	if !q.Looks {
		t.Slot, t.State, err = redis.Gauges.Take(ctx, l.Source, &a)
		return t, err
	}
	t.State = l.Table.Peek(&a)
	if !t.Overflow && t.Own < l.Max {
		t.Bound = l.Max
		t.Others, err = redis.Gauges.Look(l.Source, q.ID)
	}
	if t.Allowed = t.Own+t.Others < t.Bound; t.Allowed {
		t.Own++
	}
	return t, err
}

// again admits a request that has a slot already, and counts it once.
func (l *Limit) again(a *gauge.Ask) Taken {
	t := Taken{State: l.Table.Peek(a), Again: true}
	t.Allowed = true
	return t
}

func (l *Limit) ask(q *Question) gauge.Ask {
	a := gauge.Ask{Key: q.Key, Raw: q.Raw, Now: q.Now, Limit: l.Max, Alone: (l.Max + q.Nodes - 1) / q.Nodes}
	if q.ByID {
		a.Key, _ = l.Find(q.ID)
	}
	return a
}

// Find returns the key of which only the ID is known; ok is false where nothing is kept of it. It
// may be called on nil.
func (l *Limit) Find(id table.ID) (key table.Key, ok bool) {
	if l == nil {
		return key, false
	}
	return l.Table.Find(id)
}

// Result returns what an answer tells of a decision.
func (l *Limit) Result(t *Taken) answer.Result {
	r := answer.Result{
		Policy: l.Policy, Allowed: t.Allowed, Overridden: l.IsOverridden, Quota: l.Max, Limit: t.Bound, Size: t.Bound, Remaining: t.Remaining(),
	}
	if !t.Allowed {
		r.RetryAfter = retry
	}
	return r
}
