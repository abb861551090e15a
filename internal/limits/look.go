package limits

import (
	"context"
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// lookRedis asks what Redis would decide. What this node has decided alone, and not yet charged,
// counts as well: a request would charge it first.
func (e *Evaluation) lookRedis(ctx context.Context, zr *zoneResult, raw []byte) (decided, lost bool) {
	g := grant{by: zr.Redis.Strict, asked: clock.Now()} // of nothing
	verdicts, _, err := zr.Redis.Strict.Look(ctx, zr.Name, zr.rulesOf(), zr.Forked.ID)
	if err != nil {
		zr.mergeBan(err)
		return false, true
	}
	zr.strict, zr.grant = true, len(e.grants)
	g.came = clock.Now()
	e.grants = append(e.grants, g)
	for i := range verdicts {
		v, l := &verdicts[i], &zr.limits[i]
		l.Table.Import(l.Enforced, zr.hash, raw, clock.Now(), v.Reports)
		if l.HasDebt(zr.hash) {
			v.Decision = l.Take(zr.hash, raw, clock.Now(), 1, WaitsOf(zr.Kind)).Decision
		}
		e.receipts = append(e.receipts, table.Taken{Decision: v.Decision})
	}
	if zr.CountResponses != nil {
		e.noteGrant(zr, verdicts)
	}
	return true, false
}

// An Outcome is what an Evaluation says of one zone.
type Outcome struct {
	// Denied is set where a limit denies, or would in Shadow mode.
	Denied, Shadow bool
	// Reserved is set where it denies only until others get back what they have reserved.
	Reserved bool
	// Limits are those that the request goes by, and Results what they decided.
	Limits  []Limit
	Results []answer.Result
	// ByRedis is set where Redis decided.
	ByRedis bool
	// Key is the bytes of the key, and Hash their table.KeyOf.
	Key  []byte
	Hash keys.Key
	// Taken is how what may run at once stands with the request, and SlotResult what was decided.
	Taken      TakenSlot
	SlotResult answer.Result
}

// Of returns what was decided in a zone; ok is false where its limits were not asked.
func (e *Evaluation) Of(z *Zone) (o Outcome, ok bool) {
	for i := range e.zones {
		if zr := &e.zones[i]; zr.Zone == z {
			o = Outcome{
				zr.denied, zr.shadow, zr.reserved, zr.limits, e.resultsOf(zr)[min(zr.slot, 1):], zr.strict,
				e.keyOf(zr), zr.hash, TakenSlot{}, answer.Result{},
			}
			if zr.slot > 0 {
				o.Taken, o.SlotResult = e.slots[zr.slot-1], e.results[zr.shown-1]
			}
			return o, true
		}
	}
	return o, false
}

// Delay returns how long an admitted request waits in its queues.
func (e *Evaluation) Delay() (delay time.Duration) {
	for i := range e.zones {
		zr := &e.zones[i]
		for j := 0; zr.Kind.Queues() && !zr.shadow && j < len(zr.limits); j++ {
			delay = max(delay, e.receipts[zr.first+j].Delay)
		}
	}
	return delay
}
