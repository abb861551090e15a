package limits

import (
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
)

// The slots of zones with concurrent. A request asks for one before it asks the zone's limits:
// where none is free these are not asked, so that it counts nowhere. It is the last thing that is
// free again: when the handler has returned.

// takeSlot asks for a slot in the last zone. It reports whether the zone's limits are to be asked.
func (e *Evaluation) takeSlot(slots *SlotLimit, r *http.Request, raw []byte) bool {
	at := len(e.zones) - 1
	zr := &e.zones[at]
	q := slotQuestion{Key: zr.hash, Raw: raw, Now: e.now, Nodes: 1, Request: r}
	if zr.Forked != nil {
		q.Looks, q.ByID, q.ID = true, zr.Forked.ByID, zr.Forked.ID
	}
	var taken TakenSlot
	asks, lost := zr.IsStrict(), zr.IsUnavailable(raw)
	if asks {
		var err error
		taken, err = slots.DecideBy(r.Context(), zr.Redis, &q)
		if e.now, lost = clock.Now(), err != nil; zr.Forked == nil { // the time: see decideInRedis
			zr.Notices.Strict(r, zr.Name, zr.Redis, err)
		}
	}
	switch {
	case lost && (zr.OnRedisLoss == config.LossAllow || zr.OnRedisLoss == config.LossDeny):
		return e.failOver(zr)
	case lost && zr.OnRedisLoss == config.LossDivide:
		q.Nodes = zr.Redis.Replicator.Nodes()
	}
	if lost || !asks {
		taken = slots.Decide(&q)
	}
	taken.By = slots
	e.slots = append(e.slots, taken)
	zr.slot, e.overflowed = len(e.slots), e.overflowed || taken.Overflow
	if taken.Allowed {
		e.holds = true
		return true
	}
	zr.limits = nil
	e.deny(at, slots.Result(&taken).RetryAfter)
	return false
}

// evaluateWithSlots is evaluate that gives the slots of the zones back if something panics, such as
// a matcher: nobody frees them otherwise.
func (e *Evaluation) evaluateWithSlots(zones []*Zone, r *http.Request) error {
	done := false
	defer func() {
		if !done {
			e.freeSlots()
		}
	}()
	err := e.evaluate(zones, r)
	done = true
	return err
}

// freeSlot gives the slot of a zone back, to a request that ends here. It reports whether there was
// one.
func (e *Evaluation) freeSlot(zr *zoneResult) bool {
	if zr.slot == 0 || !e.slots[zr.slot-1].Allowed || e.slots[zr.slot-1].Again {
		return false
	}
	e.slots[zr.slot-1].Release()
	return true
}

// freeSlots gives all slots back.
func (e *Evaluation) freeSlots() {
	for i := range e.slots {
		e.slots[i].Release()
	}
}

// holdSlots hands the slots over: they are free again when the request's handler has returned.
func (e *Evaluation) holdSlots(h *Held) {
	for i := range e.slots {
		if s := &e.slots[i]; s.Allowed && !s.Again {
			s.HoldBy(h)
		}
	}
}
