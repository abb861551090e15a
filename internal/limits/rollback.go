package limits

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// rollBack refunds what the limits gave to a request: all of them where it ends here, and otherwise
// those of the zones in shadow mode that would have denied it. A zone that counts denied requests
// keeps what its limits gave, and those of them that denied take a unit.
func (e *Evaluation) rollBack(all bool) {
	results := e.Results()
	for i := range e.zones {
		zr := &e.zones[i]
		if !all && !zr.denied {
			continue
		}
		if e.freeSlot(zr) {
			results[zr.shown-1].Remaining++
		}
		if zr.strict {
			e.rollBackStrict(zr)
			continue
		}
		for j := range zr.limits {
			switch allowed := e.receipts[zr.first+j].Allowed; {
			case allowed && zr.queued:
				e.finishPeek(zr, j)
			case allowed && e.countsDenied(zr):
				e.keep(zr, j)
			case allowed:
				e.refund(zr, j)
			case e.countsDenied(zr):
				e.penalize(zr, j)
			}
		}
	}
}

// countsDenied reports whether a zone counts a request that is denied. One of a key that is banned
// counts nowhere.
func (e *Evaluation) countsDenied(zr *zoneResult) bool { return zr.CountDenied && e.banned == nil }

// rollBackStrict refunds what Redis granted. What it denied is charged by then, where that counts.
// A slot in a queue stays taken: whether anybody stands behind it is not known here.
func (e *Evaluation) rollBackStrict(zr *zoneResult) {
	g := e.grants[zr.grant]
	switch {
	case zr.CountResponses != nil:
		if g.Admitted() {
			e.refundInRedis(zr)
		}
		return
	case zr.denied && !e.countsDenied(zr):
		return
	case !zr.denied && !e.countsDenied(zr) && !zr.Kind.Queues():
		g.by.Refund(g.Grant)
		return
	}
	since := time.Duration(e.now - g.came)
	for i := range zr.limits {
		if t := &e.receipts[zr.first+i]; t.Allowed && t.Remaining == 0 {
			e.tellWait(zr, i, max(1, t.Next-since))
		}
	}
}

// finishPeek takes from a queue that was only read, if it counts denied requests.
func (e *Evaluation) finishPeek(zr *zoneResult, i int) {
	if !e.countsDenied(zr) {
		e.restate(zr, i)
		return
	}
	l := &zr.limits[i]
	l.Table.Penalize(l.Enforced, zr.hash, e.receipts[zr.first+i], 1)
	e.keep(zr, i)
}

// keep leaves a limit the unit of a request that another one denies. Where that was the last one,
// the client waits for the next one, too.
func (e *Evaluation) keep(zr *zoneResult, i int) {
	if e.restate(zr, i); e.results[zr.shown+i].Remaining > 0 {
		return
	}
	l := &zr.limits[i]
	is := e.standing(zr, l, 1, table.Again)
	if is.Allowed {
		l.Table.Refund(l.Enforced, zr.hash, *is, 1)
		return
	}
	e.tellWait(zr, i, is.Retry)
}

// tellWait has a denied request wait for one of the limits as well.
func (e *Evaluation) tellWait(zr *zoneResult, i int, wait time.Duration) {
	if e.results[zr.shown+i].RetryAfter = wait; !zr.shadow {
		e.wait = max(e.wait, wait)
	}
}

// refund returns what a limit granted.
func (e *Evaluation) refund(zr *zoneResult, i int) {
	l, taken := &zr.limits[i], e.receipts[zr.first+i]
	if zr.Kind.Queues() {
		l.Table.Leave(l.Enforced, zr.hash, taken, clock.Now(), 1)
	} else {
		l.Table.Refund(l.Enforced, zr.hash, taken, 1)
	}
	if zr.CountResponses != nil {
		l.Settler.Settle(zr.hash, l.Settler.Hold(l.Enforced, zr.hash, taken), e.now, false)
	}
	e.restate(zr, i)
}

// restateAll has the results of a request that waited in a queue say how the limits stand at now.
// Redis is not asked again: what its answers tell of comes sooner by the wait.
func (e *Evaluation) restateAll(now int64) {
	waited := time.Duration(now - e.now)
	e.now = now
	results := e.Results()
	for i := range e.zones {
		zr := &e.zones[i]
		for j := range zr.limits {
			if d := &results[zr.shown+j]; zr.strict {
				d.MoreAfter = max(0, d.MoreAfter-waited)
			} else if zr.Want != 0 {
				e.restate(zr, j)
			}
		}
	}
}

// restate has a result say how a limit stands now.
func (e *Evaluation) restate(zr *zoneResult, i int) {
	l := &zr.limits[i]
	is := e.standing(zr, l, 0, WaitsOf(zr.Kind))
	d := &e.results[zr.shown+i]
	d.Remaining, d.MoreAfter = is.Remaining, l.MoreAfter(&is.Decision)
}

// penalize takes from a limit that denied. The client waits for that, too.
func (e *Evaluation) penalize(zr *zoneResult, i int) {
	l := &zr.limits[i]
	l.Table.Penalize(l.Enforced, zr.hash, e.receipts[zr.first+i], 1)
	is := e.standing(zr, l, 1, table.Again)
	if is.Allowed {
		l.Table.Refund(l.Enforced, zr.hash, *is, 1)
		return
	}
	d := &e.results[zr.shown+i]
	before := d.RetryAfter
	l.Tell(&is.Decision, d)
	e.tellWait(zr, i, max(before, is.Retry)) // a penalty makes no wait shorter
}
