package limits

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// What a limit gave to a request is a table.Taken: how many units, and where they were taken from.

// isSpent reports whether a limit denied because it is spent: not by what other nodes have probably
// spent, not by a sketch in which others count as well, and not by a share of a limit that is
// whole.
func (l *Limit) isSpent(t *table.Taken) bool {
	return !t.Allowed && !t.Estimated && !t.Overflow && l.share.nodes == 0
}

// end ends what a limit gave to a request that is denied, which d tells of. Where denied requests
// count the limit keeps it, and takes as much where it denied, or was only read. It returns how
// long the client waits for this limit as well: too little may be left for the next request.
func (l *Limit) end(a *table.Ask, t *table.Taken, now int64, counts bool, d *answer.Result) (wait time.Duration) {
	isRead := t.Allowed && t.N == 0
	switch {
	case counts && (isRead || !t.Allowed):
		l.Table.Penalize(l.Enforced, a.Key, *t, a.N)
	case !t.Allowed:
		return 0
	case !counts && !isRead:
		l.giveBack(a.Key, *t, now)
	}
	if t.Allowed {
		if l.restate(a, now, d); !counts || d.Remaining >= a.N {
			return 0
		}
	}
	is := l.Table.Take(l.Enforced, a.Key, a.Raw, now, a.N, table.Again)
	if is.Allowed {
		l.Table.Refund(l.Enforced, a.Key, is, a.N)
		return 0
	}
	if wait = is.Retry; !t.Allowed {
		wait = max(wait, d.RetryAfter) // a penalty makes no wait shorter
		l.Tell(&is.Decision, d)
	}
	d.RetryAfter = wait
	return wait
}

// giveBack refunds what a limit granted.
func (l *Limit) giveBack(key keys.Key, t table.Taken, now int64) {
	if l.Settings.Kind.Queues() {
		l.Table.Leave(l.Enforced, key, t, clock.Now(), t.N)
	} else {
		l.Table.Refund(l.Enforced, key, t, t.N)
	}
	if l.Settings.Settles() {
		l.Table.Settle(key, l.Table.Hold(l.Enforced, key, t), now, t.N)
	}
}

// restate has a result say how a limit stands at now.
func (l *Limit) restate(a *table.Ask, now int64, d *answer.Result) {
	is := l.Table.Take(l.Enforced, a.Key, a.Raw, now, 0, WaitsOf(l.Settings.Kind))
	d.Remaining, d.MoreAfter = is.Remaining, l.MoreAfter(&is.Decision)
}
