package limits

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/counters"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// rollBack refunds what the limits gave to a request: all of them where it ends here, and otherwise
// those of the zones in shadow mode that would have denied it. A zone that counts denied requests
// keeps what its limits gave, and those of them that denied take a unit.
func (e *Evaluation) rollBack(all bool) {
	for i := range e.zones {
		zr := &e.zones[i]
		if !all && !zr.denied {
			continue
		}
		e.freeSlot(zr)
		if zr.strict {
			e.rollBackStrict(zr)
			continue
		}
		for j := range zr.limits {
			switch l, at := &zr.limits[j], zr.first+j; {
			case e.receipts[at].Allowed && zr.queued:
				e.finishPeek(zr, l, at)
			case e.receipts[at].Allowed && e.countsDenied(zr):
				if zr.want == 0 { // of a denied request the waits are shown in any case
					e.restate(zr, l, at)
				}
			case e.receipts[at].Allowed:
				e.refund(zr, l, at)
			case e.countsDenied(zr):
				e.penalize(zr, l, at)
			}
		}
	}
}

// countsDenied reports whether a zone counts a request that is denied. One of a key that is banned
// counts nowhere.
func (e *Evaluation) countsDenied(zr *zoneResult) bool { return zr.CountDenied && e.banned == nil }

// rollBackStrict refunds what Redis granted, or charges for what it denied. A slot in a queue stays
// taken: whether anybody stands behind it is not known here.
func (e *Evaluation) rollBackStrict(zr *zoneResult) {
	g := e.grants[zr.grant]
	switch {
	case g.Admitted() && zr.CountResponses != nil:
		e.refundInRedis(zr)
	case g.Admitted() && !e.countsDenied(zr) && zr.Kind != algorithms.LeakyBucket:
		g.by.Refund(g.Grant)
	case !g.Admitted() && e.countsDenied(zr):
		g.by.Penalize(g.Grant)
	}
}

// finishPeek takes from a queue that was only read, if it counts denied requests.
func (e *Evaluation) finishPeek(zr *zoneResult, l *Limit, at int) {
	if e.countsDenied(zr) {
		l.Table.Penalize(l.Enforced, zr.hash, e.receipts[at], 1)
	}
	e.restate(zr, l, at)
}

// refund returns what a limit granted.
func (e *Evaluation) refund(zr *zoneResult, l *Limit, at int) {
	if zr.Kind == algorithms.LeakyBucket {
		l.Table.Leave(l.Enforced, zr.hash, e.receipts[at], clock.Now(), 1)
	} else {
		l.Table.Refund(l.Enforced, zr.hash, e.receipts[at], 1)
	}
	if zr.CountResponses != nil {
		l.Settler.Settle(zr.hash, l.Settler.Hold(l.Enforced, zr.hash, e.receipts[at]), e.now, false)
	}
	e.restate(zr, l, at)
}

// restateAll has the results of a request that waited in a queue say how the limits stand at now.
// Redis is not asked again: what its answers tell of comes sooner by the wait.
func (e *Evaluation) restateAll(now int64) {
	waited := time.Duration(now - e.now)
	e.now = now
	for i := range e.zones {
		zr := &e.zones[i]
		for j := range zr.limits {
			if at := zr.first + j; zr.strict {
				e.results[at].MoreAfter = max(0, e.results[at].MoreAfter-waited)
			} else if zr.want != 0 {
				e.restate(zr, &zr.limits[j], at)
			}
		}
	}
}

// restate has a result say how a limit stands now.
func (e *Evaluation) restate(zr *zoneResult, l *Limit, at int) {
	is := l.Take(zr.hash, e.keyOf(zr), e.now, 0, counters.WaitsOf(zr.Kind))
	d := &e.results[at]
	d.Remaining, d.MoreAfter = is.Remaining, l.MoreAfter(&is.Decision)
}

// penalize takes from a limit that denied. The client waits for that, too.
func (e *Evaluation) penalize(zr *zoneResult, l *Limit, at int) {
	l.Table.Penalize(l.Enforced, zr.hash, e.receipts[at], 1)
	is := l.Take(zr.hash, e.keyOf(zr), e.now, 1, table.Again)
	if is.Allowed {
		l.Table.Refund(l.Enforced, zr.hash, is, 1)
		return
	}
	e.results[at] = l.Result(&is.Decision)
	e.results[at].Shadow = zr.shadow
	if !zr.shadow {
		e.wait = max(e.wait, is.Retry)
	}
}
