package limits

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// What a limit gave to a request is a table.Taken: how many units, and where they were taken from.

// rollBack ends what a limit gave to a request that is denied, which d tells of. Where denied
// requests count the limit keeps it, and takes as much where it denied, or was only read. It
// returns how long the client waits for this limit as well: too little may be left for the next
// request.
func (l *Limit) rollBack(a *table.Ask, t *table.Taken, now int64, counts, byRedis bool, d *answer.Result) (wait time.Duration) {
	isRead := t.Allowed && (t.N == 0 || t.Unspent)
	switch {
	case counts && (isRead || !t.Allowed):
		l.Table.Penalize(l.Effective, a.Key, *t, a.N)
	case !t.Allowed:
		return 0
	case !counts && !isRead:
		switch isQueue := l.Settings.Kind.Traits().Queues; {
		case isQueue && byRedis:
			// The place stays taken: whether anybody stands behind it is not known here.
		case isQueue:
			l.Table.Leave(l.Effective, a.Key, *t, clock.Now(), t.N)
		case l.Settings.Settles():
			l.Table.Settle(a.Key, l.Table.ReservationOf(l.Effective, a.Key, *t), now, table.RolledBack)
		default:
			l.Table.Refund(l.Effective, a.Key, *t, t.N)
		}
	}
	if t.Allowed {
		if l.restate(a, now, d); !counts || d.Remaining >= a.N {
			return 0
		}
	}
	is := l.again(a, now, byRedis)
	if is.Allowed {
		return 0
	}
	if wait = is.Retry; !t.Allowed {
		wait = max(wait, d.RetryAfter) // a penalty makes no wait shorter
		l.Fill(&is.Decision, d)
	}
	d.RetryAfter = wait
	return wait
}

// again is how a limit stands for the next request of as much.
func (l *Limit) again(a *table.Ask, now int64, byRedis bool) (is table.Taken) {
	if byRedis {
		return l.Table.Look(l.Effective, a.Key, now, a.N, l.Settings.Kind.Traits().Waits)
	}
	if is = l.Table.Take(l.Effective, a.Key, a.Raw, now, a.N, table.Retried); is.Allowed {
		l.Table.Refund(l.Effective, a.Key, is, a.N)
	}
	return is
}

// restate has a result say how a limit stands at now.
func (l *Limit) restate(a *table.Ask, now int64, d *answer.Result) {
	is := l.Table.Take(l.Effective, a.Key, a.Raw, now, 0, l.Settings.Kind.Traits().Waits)
	d.Remaining, d.MoreAfter = is.Remaining, l.MoreAfter(&is.Decision)
}
