package limits

import (
	"net/http"
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A SlotLimit is how many requests of a key a zone has running at once.
type SlotLimit struct {
	*Slots

	// Settings are those of the zone.
	Settings *config.Settings
	// Policy is what answers tell of it.
	Policy *answer.Policy
	// Max is the number, and IsOverridden is set where an operator has set another one.
	Max          int64
	IsOverridden bool
}

// NewSlotLimit returns the limit of a zone, nil where it has none, and acquires its slots. Answers
// tell of it by these sets of headers.
func NewSlotLimit(z *config.Settings, sets answer.HeaderSets) *SlotLimit {
	if z.Concurrent == 0 {
		return nil
	}
	p := answer.Policy{Zone: z.Name, Name: z.Name, Limit: z.Concurrent, Concurrent: true}
	if len(z.Limits) > 0 {
		p.Name += "-concurrent"
	}
	return &SlotLimit{Slots: AcquireSlots(z.Name, z.MaxKeys), Settings: z, Policy: p.Compile(sets), Max: z.Concurrent}
}

// For returns the limit for a key with an override, nil where there is none. The override is about
// it where the zone has no other limit. It may be called on nil.
func (l *SlotLimit) For(o *control.Override) *SlotLimit {
	if l == nil || o == nil {
		return l
	}
	n, ok := o.LimitOf(0, len(l.Settings.Limits) == 0)
	switch {
	case ok && len(l.Settings.Limits) == 0:
		c := *l
		c.Max, c.IsOverridden = n, true
		return &c
	case o.Unlimited:
		return nil
	}
	return l
}

// slotRetry is what a denied request is told to wait: nobody knows when one ends that runs.
const slotRetry = time.Second

// A TakenSlot is what was decided for a request, and its slot, if it got one.
type TakenSlot struct {
	gauge.Slot
	gauge.State
	// By is the limit that decided.
	By *SlotLimit
	// AlreadyHeld is set where the request has a slot of the key already, by another handler.
	AlreadyHeld bool
}

// Release frees the slot, unless it is free, was handed over, or is another handler's.
func (t *TakenSlot) Release() {
	t.Free()
	t.Slot = gauge.Slot{}
}

// GiveBack frees the slot of a request that ends here. It reports whether there was one.
func (t *TakenSlot) GiveBack() bool {
	if !t.Allowed || t.AlreadyHeld {
		return false
	}
	t.Release()
	return true
}

// Decide gives a slot as far as this node knows. In a dry run it says what it would have done.
func (l *SlotLimit) Decide(a *gauge.Ask, dry *Dry, r *http.Request) (t TakenSlot) {
	switch {
	case dry != nil:
		if t.State = l.Table.Peek(a); t.Allowed {
			t.Own++
		}
	case l.has(a.Key, r):
		return l.again(a)
	default:
		t.Slot, t.State = l.Table.Take(a)
	}
	return t
}

// DecideBy has Redis decide. An error means that it has not.
func (l *SlotLimit) DecideBy(redis *Redis, a *gauge.Ask, dry *Dry, r *http.Request) (t TakenSlot, err error) {
	switch {
	case dry != nil:
	case l.has(a.Key, r):
		return l.again(a), nil
	default:
		t.Slot, t.State, err = redis.Slots.Take(r.Context(), l.Syncer, a)
		return t, err
	}
	t.State = l.Table.Peek(a)
	if !t.Overflow { // also where this node has all of them: without Redis on_redis_loss decides
		t.Bound = l.Max
		t.Others, err = redis.Slots.Look(l.Syncer, dry.ID, t.Own >= t.Bound)
	}
	if t.Allowed = t.Own+t.Others < t.Bound; t.Allowed {
		t.Own++
	}
	return t, err
}

// again admits a request that has a slot already, and counts it once.
func (l *SlotLimit) again(a *gauge.Ask) TakenSlot {
	t := TakenSlot{State: l.Table.Peek(a), AlreadyHeld: true}
	t.Allowed = true
	return t
}

// Find returns the key of which only the ID is known; ok is false where nothing is kept of it. It
// may be called on nil.
func (l *SlotLimit) Find(id keys.ID) (key keys.Key, ok bool) {
	if l == nil {
		return key, false
	}
	return l.Table.Find(id)
}

// Result returns what an answer tells of a decision.
func (l *SlotLimit) Result(t *TakenSlot) answer.Result {
	r := answer.Result{
		Policy: l.Policy, Allowed: t.Allowed, Overridden: l.IsOverridden, Quota: l.Max, Limit: t.Bound, Size: t.Bound, Remaining: t.Remaining(),
	}
	if !t.Allowed {
		r.RetryAfter = slotRetry
	}
	return r
}
