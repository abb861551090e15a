package concurrent

import (
	"net/http"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/held"
)

// A request that passes several handlers with the same zone runs once, and has one slot for all of
// them. So it carries the slots that it has along.

// variable holds the innermost of a request's places.
const variable = "rate_limit.running"

// A place is a slot that a request has until a handler has returned.
type place struct {
	gauge.Slot
	outer *place // nil for none
	ended atomic.Bool
}

// HoldBy hands the slot over to what the request holds until its handler has returned.
func (t *Taken) HoldBy(h *held.Held) {
	p := &place{Slot: t.Slot}
	t.Slot = gauge.Slot{}
	h.Wrap(func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
		p.outer = placeOf(r)
		caddyhttp.SetVar(r.Context(), variable, p)
		return w
	})
	h.OnEnd(func() {
		p.ended.Store(true)
		p.Free()
	})
}

// placeOf returns the innermost place that a request has, nil for none.
func placeOf(r *http.Request) *place {
	p, _ := caddyhttp.GetVar(r.Context(), variable).(*place)
	for p != nil && p.ended.Load() {
		p = p.outer
	}
	return p
}

// has reports whether the request of a question has a slot of its key already.
func (l *Limit) has(q *Question) bool {
	if q.Looks || q.Request == nil {
		return false
	}
	for p := placeOf(q.Request); p != nil; p = p.outer {
		if !p.ended.Load() && p.IsOf(l.Table, q.Key) {
			return true
		}
	}
	return false
}
