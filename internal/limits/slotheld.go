package limits

import (
	"net/http"
	"sync/atomic"

	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// A request that passes several handlers with the same zone runs once, and has one slot for all of
// them. So it carries the slots that it has along, where a configuration has such zones.

// runningVariable holds the innermost of a request's held slots, in its replacer. The request's
// variables have no lock, and a handler that has returned may have left somebody behind who reads
// them.
const runningVariable = "http.rate_limit.running"

// A heldSlot is a slot that a request holds until its response or its handler has ended.
type heldSlot struct {
	gauge.Slot
	outer *heldSlot // nil for none
	ended atomic.Bool
}

// HoldBy hands the slot over to what the request holds until its response or its handler has ended.
// The client may have all of the response, and come again, before the handler has returned.
func (t *TakenSlot) HoldBy(h *Held) {
	if !t.By.isInSeveral() {
		h.OnLast(t.Free)
		t.Slot = gauge.Slot{}
		return
	}
	p := &heldSlot{Slot: t.Slot}
	t.Slot = gauge.Slot{}
	h.Wrap(func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
		if repl := reqkey.ReplacerOf(r); repl != nil {
			p.outer = slotsHeldBy(r)
			repl.Set(runningVariable, p)
		}
		return w
	})
	h.OnLast(func() {
		p.ended.Store(true)
		p.Free()
	})
}

// slotsHeldBy returns the innermost slot that a request holds, nil for none.
func slotsHeldBy(r *http.Request) *heldSlot {
	repl := reqkey.ReplacerOf(r)
	if repl == nil {
		return nil
	}
	v, _ := repl.Get(runningVariable)
	p, _ := v.(*heldSlot)
	for p != nil && p.ended.Load() {
		p = p.outer
	}
	return p
}

// isInSeveral reports whether several handlers have the zone, or configurations during a reload.
func (s *Slots) isInSeveral() bool { return s.users.Load() > 1 }

// has reports whether a request has a slot of a key already.
func (l *SlotLimit) has(key keys.Key, r *http.Request) bool {
	if !l.isInSeveral() {
		return false
	}
	for p := slotsHeldBy(r); p != nil; p = p.outer {
		if !p.ended.Load() && p.IsOf(l.Table, key) {
			return true
		}
	}
	return false
}
