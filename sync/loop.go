package ratesync

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
)

// serve drives a syncer's loop: a sync every interval, and early ones for what is urgent in
// between.
func (a *attachment) serve(ctx context.Context, l *link) {
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
		case flush = <-a.flushes:
			event.Kind = cycle.Force
		case <-timer.C:
		case <-l.Waker:
			event.Kind = cycle.Wake
		}
		if a.syncAll.Swap(false) || a.untilResend() == 0 {
			event.Kind = cycle.Force
		}
		interval := time.Duration(a.interval.Load())
		next, action, wait := state.Next(event, time.Since(began), interval)
		if action != cycle.Await {
			event = a.cycle(ctx, l, action == cycle.SyncUrgent, flush)
			next, _, wait = next.Next(event, time.Since(began), interval)
			l.syncer.setMissedTwice(next.MissedTwice)
		}
		state = next
		timer.Reset(min(wait, a.untilResend()))
	}
}

// untilResend returns how long it takes until the rest of what the server has forgotten is to be
// sent, a long time where nothing is.
func (a *attachment) untilResend() time.Duration {
	when := a.resendRestAt.Load()
	if when == 0 {
		return math.MaxInt64
	}
	return time.Duration(max(0, when-a.group.r.now()))
}

// cycle is one sync cycle of a syncer, early or not, and what is noted of it. With flush it is the
// one that a flush waits for.
func (a *attachment) cycle(ctx context.Context, l *link, early bool, flush *flushRequest) cycle.Event {
	var missed uint64
	var err error
	if a.flushing = flush != nil; a.flushing {
		missed, err = a.syncLast(flush.ctx, l)
		defer func() { flush.answer <- err }()
	} else {
		missed, err = l.syncer.sync(ctx, a, early)
	}
	if ctx.Err() == nil && !errors.Is(err, context.Canceled) { // else this node stopped it
		a.missed.Store(missed)
		l.syncer.note(a, early, err)
		if err == nil && !early {
			a.complete()
		}
	}
	event := cycle.Event{Kind: cycle.Reply, Missed: a.missed.Load(), Urgent: l.syncer.urgent()}
	if err != nil {
		event.Kind = cycle.Failed
	}
	return event
}

// complete notes that a cycle has ended without an error. It shows nothing of the store while
// heartbeats fail or have not begun: the cycle has sent nothing then, or Redis was unreachable just
// before or after it.
func (a *attachment) complete() {
	if r := a.group.r; r.reachedAt.Load() != 0 && r.unreachable.Load() == 0 {
		a.synced.Store(r.now())
	}
	a.cycles.Add(1)
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
