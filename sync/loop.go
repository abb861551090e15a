package ratesync

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
)

// serve drives a client's loop: a sync every interval, and early ones for what is urgent in
// between.
func (at *attachment) serve(ctx context.Context, l *link) {
	var state cycle.State
	began := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var event cycle.Event
		var flush *flushRequest
		select {
		case <-ctx.Done():
			return
		case flush = <-at.flushes:
			event.Kind = cycle.Force
		case <-timer.C:
		case <-l.Waker:
			event.Kind = cycle.Wake
		}
		if at.due.Swap(false) || at.untilRest() == 0 {
			event.Kind = cycle.Force
		}
		interval := time.Duration(at.interval.Load())
		next, action, wait := state.Next(event, time.Since(began), interval)
		if action != cycle.Await {
			event = at.cycle(ctx, l, action == cycle.SyncUrgent, flush)
			next, _, wait = next.Next(event, time.Since(began), interval)
			l.syncer.setMissed(next.MissedTwice)
		}
		state = next
		timer.Reset(min(wait, at.untilRest()))
	}
}

// untilRest returns how long it takes until the rest of what the server has forgotten is to be
// sent, a long time where nothing is.
func (at *attachment) untilRest() time.Duration {
	when := at.resendRestAt.Load()
	if when == 0 {
		return math.MaxInt64
	}
	return time.Duration(max(0, when-at.group.r.now()))
}

// cycle is one sync cycle of a client, early or not, and what is noted of it. With flush it is the
// one that a flush waits for.
func (at *attachment) cycle(ctx context.Context, l *link, early bool, flush *flushRequest) cycle.Event {
	var missed uint64
	var err error
	if at.flushing = flush != nil; at.flushing {
		missed, err = at.syncLast(flush.ctx, l)
		defer func() { flush.answer <- err }()
	} else {
		missed, err = l.syncer.sync(ctx, at, early)
	}
	if ctx.Err() == nil && !errors.Is(err, context.Canceled) { // else this node stopped it
		at.lastFailed.Store(missed)
		l.syncer.note(at, early, err)
		if err == nil && !early {
			at.complete()
		}
	}
	event := cycle.Event{Kind: cycle.Reply, Missed: at.lastFailed.Load(), Urgent: l.syncer.urgent()}
	if err != nil {
		event.Kind = cycle.Failed
	}
	return event
}

// complete notes that a cycle has ended without an error. It shows nothing of the store while
// heartbeats fail or have not begun: the cycle has sent nothing then, or Redis was unreachable just
// before or after it.
func (at *attachment) complete() {
	if r := at.group.r; r.reachedAt.Load() != 0 && r.unreachable.Load() == 0 {
		at.synced.Store(r.now())
	}
	at.cycles.Add(1)
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
