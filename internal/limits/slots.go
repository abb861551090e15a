package limits

import (
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// takeSlot asks for a slot in the zone of a check, before the limits of the zone. It is free again
// when the response or the handler has ended, see HoldBy.
func (e *Evaluation) takeSlot(p *check, slots *SlotLimit, slowed bool, r *http.Request) decision {
	asks, lost := p.IsStrict(), p.IsUnavailable(p.ask.Raw)
	a := gauge.Ask{Key: p.ask.Key, Raw: p.ask.Raw, Now: e.Now, Limit: slots.Max, Alone: slots.Max}
	var taken TakenSlot
	if asks {
		var err error
		taken, err = slots.DecideBy(p.Redis, &a, p.Dry, r)
		if e.Now, lost = clock.Now(), err != nil; p.Dry == nil { // the time: see askRedis
			p.Notices.Strict(r, p.Name, p.Redis, err)
		} else if err != nil {
			p.Dry.Lost = err
		}
	}
	switch {
	case lost && (p.OnRedisLoss == config.LossAllow || p.OnRedisLoss == config.LossDeny):
		_, decided := p.failOver(nil, slowed)
		return decided
	case lost && p.OnRedisLoss == config.LossDivide:
		nodes := p.Redis.Replicator.Nodes() // which can't hear of each other
		a.Alone = (slots.Max + nodes - 1) / nodes
	}
	if lost || !asks {
		taken = slots.Decide(&a, p.Dry, r)
	}
	taken.By = slots
	e.slots = append(e.slots, taken)
	e.taken = append(e.taken, table.Taken{})
	p.slot, p.first = len(e.slots), p.first+1
	if !taken.Allowed {
		p.limits, p.wait = nil, slotRetry
		return denies
	}
	return admits
}
