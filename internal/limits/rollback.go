package limits

import (
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
)

// rollBack refunds what the limits gave to a denied request. A zone that counts denied requests
// keeps what it gave, and takes it where it denied. Of a request that is denied in shadow mode
// alone, the zones that would have denied it get back what is theirs.
func (e *Evaluation) rollBack() {
	denied := e.IsDenied()
	for i := range e.zones {
		zr := &e.zones[i]
		if !denied && !zr.denied {
			continue
		}
		if zr.strict {
			e.rollBackStrict(zr)
			continue
		}
		for j := range zr.limits {
			switch l, at := &zr.limits[j], zr.first+j; {
			case e.receipts[at].Allowed && zr.queued:
				e.finishPeek(zr, l, at)
			case e.receipts[at].Allowed && zr.CountDenied:
				if zr.want == 0 { // of a denied request the waits are shown in any case
					e.restate(zr, l, at)
				}
			case e.receipts[at].Allowed:
				e.refund(zr, l, at)
			case zr.CountDenied:
				e.penalize(zr, l, at)
			}
		}
	}
}

// rollBackStrict refunds what Redis granted, or charges for what it denied. A slot in a queue stays
// taken: whether anybody stands behind it is not known here.
func (e *Evaluation) rollBackStrict(zr *zoneResult) {
	g := e.grants[zr.grant]
	switch {
	case g.Admitted() && !zr.CountDenied && zr.Kind != algorithms.LeakyBucket:
		g.by.Refund(g.Grant)
	case !g.Admitted() && zr.CountDenied:
		g.by.Penalize(g.Grant)
	}
}

// finishPeek takes from a queue that was only read, if it counts denied requests.
func (e *Evaluation) finishPeek(zr *zoneResult, l *Limit, at int) {
	if zr.CountDenied {
		l.table.Penalize(l.enforced, zr.hash, e.receipts[at], 1)
	}
	e.restate(zr, l, at)
}

// refund returns what a limit granted.
func (e *Evaluation) refund(zr *zoneResult, l *Limit, at int) {
	if zr.Kind == algorithms.LeakyBucket {
		l.table.Leave(l.enforced, zr.hash, e.receipts[at], clock.Now(), 1)
	} else {
		l.table.Refund(l.enforced, zr.hash, e.receipts[at], 1)
	}
	e.restate(zr, l, at)
}

// restate has a result say how a limit stands now.
func (e *Evaluation) restate(zr *zoneResult, l *Limit, at int) {
	is := l.Take(zr.hash, e.keyOf(zr), e.now, 0, waitsOf(zr.Kind))
	d := &e.results[at]
	d.Remaining, d.MoreAfter = is.Remaining, l.moreAfter(&is.Decision)
}

// penalize takes from a limit that denied. The client waits for that, too.
func (e *Evaluation) penalize(zr *zoneResult, l *Limit, at int) {
	l.table.Penalize(l.enforced, zr.hash, e.receipts[at], 1)
	is := l.Take(zr.hash, e.keyOf(zr), e.now, 1, 0)
	if is.Allowed {
		l.table.Refund(l.enforced, zr.hash, is, 1)
		return
	}
	e.results[at] = l.result(&is.Decision)
	e.results[at].Shadow = zr.shadow
	if !zr.shadow {
		e.wait = max(e.wait, is.Retry)
	}
}
