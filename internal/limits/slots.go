package limits

import (
	"net/http"
	"slices"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// takeSlot asks for a slot in the zone of the last part. It is the last thing that is free again:
// when the handler has returned.
func (e *Evaluation) takeSlot(p *part, slots *SlotLimit, slowed bool, r *http.Request) verdict {
	q := slotQuestion{Key: p.ask.Key, Raw: p.ask.Raw, Now: e.Now, Nodes: 1, Request: r}
	if p.Forked != nil {
		q.Looks, q.ByID, q.ID = true, p.Forked.ByID, p.Forked.ID
	}
	var taken TakenSlot
	asks, lost := p.IsStrict(), p.IsUnavailable(p.ask.Raw)
	if asks {
		var err error
		taken, err = slots.DecideBy(r.Context(), p.Redis, &q)
		if e.Now, lost = clock.Now(), err != nil; p.Forked == nil { // the time: see askRedis
			p.Notices.Strict(r, p.Name, p.Redis, err)
		}
	}
	switch {
	case lost && (p.OnRedisLoss == config.LossAllow || p.OnRedisLoss == config.LossDeny):
		_, says := p.failOver(nil, slowed)
		return says
	case lost && p.OnRedisLoss == config.LossDivide:
		q.Nodes = p.Redis.Replicator.Nodes()
	}
	if lost || !asks {
		taken = slots.Decide(&q)
	}
	taken.By = slots
	e.slots = append(e.slots, taken)
	e.receipts = slices.Grow(e.receipts, 1)[:p.first+1]
	e.receipts[p.first] = table.Taken{}
	p.slot, p.first = len(e.slots), p.first+1
	if !taken.Allowed {
		p.limits, p.wait = nil, slotRetry
		return denies
	}
	return admits
}
