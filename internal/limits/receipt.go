package limits

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A receipt is what one limit, or the slots of a zone, gave to a request: where it was taken from,
// and how much.
type receipt struct {
	// Taken is of 0 units where a queue was only read.
	table.Taken
	// reserved is set where the limit denies only as long as others may get back what they have
	// reserved.
	reserved bool
}

// isSpent reports whether a limit denied because it is spent: not by what other nodes have probably
// spent, not by a sketch in which others count as well, and not by a share of a limit that is
// whole.
func (t *receipt) isSpent(l *Limit) bool {
	return !t.Allowed && !t.Estimated && !t.Overflow && !l.isShare
}

// What follows ends what a limit gave to a request that is denied. d tells of it. Each returns how
// long the client waits for this limit as well.

// giveBack refunds what a limit granted.
func (l *Limit) giveBack(a *table.Ask, t *receipt, now int64, d *answer.Result) {
	if l.Settings.Kind.Queues() {
		l.Table.Leave(l.Enforced, a.Key, t.Taken, clock.Now(), t.N)
	} else {
		l.Table.Refund(l.Enforced, a.Key, t.Taken, t.N)
	}
	if l.Settings.CountResponses != nil {
		l.Settler.Settle(a.Key, l.Settler.Hold(l.Enforced, a.Key, t.Taken), now, false)
	}
	l.restate(a, now, d)
}

// finishPeek takes from a queue that was only read, if denied requests count.
func (l *Limit) finishPeek(a *table.Ask, t *receipt, now int64, counts bool, d *answer.Result) (wait time.Duration) {
	if !counts {
		l.restate(a, now, d)
		return 0
	}
	l.Table.Penalize(l.Enforced, a.Key, t.Taken, a.N)
	return l.keep(a, now, d)
}

// keep leaves a limit the units of a request that another one denies. Where too little is left for
// the next one, the client waits for that, too.
func (l *Limit) keep(a *table.Ask, now int64, d *answer.Result) (wait time.Duration) {
	if l.restate(a, now, d); d.Remaining >= a.N {
		return 0
	}
	is := l.Table.Take(l.Enforced, a.Key, a.Raw, now, a.N, table.Again)
	if is.Allowed {
		l.Table.Refund(l.Enforced, a.Key, is, a.N)
		return 0
	}
	d.RetryAfter = is.Retry
	return is.Retry
}

// penalize takes from a limit that denied. The client waits for that, too.
func (l *Limit) penalize(a *table.Ask, t *receipt, now int64, d *answer.Result) (wait time.Duration) {
	l.Table.Penalize(l.Enforced, a.Key, t.Taken, a.N)
	is := l.Table.Take(l.Enforced, a.Key, a.Raw, now, a.N, table.Again)
	if is.Allowed {
		l.Table.Refund(l.Enforced, a.Key, is, a.N)
		return 0
	}
	before := d.RetryAfter
	l.Tell(&is.Decision, d)
	d.RetryAfter = max(before, is.Retry) // a penalty makes no wait shorter
	return d.RetryAfter
}

// restate has a result say how a limit stands at now.
func (l *Limit) restate(a *table.Ask, now int64, d *answer.Result) {
	is := l.Table.Take(l.Enforced, a.Key, a.Raw, now, 0, WaitsOf(l.Settings.Kind))
	d.Remaining, d.MoreAfter = is.Remaining, l.MoreAfter(&is.Decision)
}

// isNear reports whether little was left of a limit or of the slots, nil for none, before a request
// that was admitted.
func isNear(limits []Limit, took []receipt, slot *TakenSlot) bool {
	if slot != nil && answer.IsNear(slot.Remaining(), slot.Bound, 1) {
		return true
	}
	for i := range took {
		if answer.IsNear(took[i].Remaining, limits[i].Enforced.Size, 1) {
			return true
		}
	}
	return false
}

// isOverflow reports whether a key has no counter of its own.
func isOverflow(took []receipt, slot *TakenSlot) bool {
	return len(took) > 0 && took[0].Overflow || slot != nil && slot.Overflow
}
