package ratesync

import (
	"context"
	"errors"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
)

// serve drives a table's loop: a sync every rate, and early ones for urgent keys in between.
func (r *Replicator) serve(ctx context.Context, s *Source, at *attachment) {
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
		case <-s.wake:
			event.Kind = cycle.Wake
		}
		if at.due.Swap(false) {
			event.Kind = cycle.Force
		}
		rate := time.Duration(at.rate.Load())
		next, action, wait := state.Next(event, time.Since(began), rate)
		if action != cycle.Await {
			event = r.cycle(ctx, s, at, action == cycle.SyncUrgent, flush)
			next, _, wait = next.Next(event, time.Since(began), rate)
			s.table.SetLost(next.Unreachable)
		}
		state = next
		timer.Reset(wait)
	}
}

// cycle is one sync cycle of a table, early or not, and what is noted of it. With flush it is the
// one that a flush waits for.
func (r *Replicator) cycle(ctx context.Context, s *Source, at *attachment, early bool, flush *flushRequest) cycle.Event {
	var err error
	at.failed, at.answered = 0, 0
	if flush != nil {
		err = r.syncLast(flush.ctx, s, at)
		defer func() { flush.answer <- err }()
	} else {
		r.awaitRecord(ctx)
		err = r.syncAll(ctx, s, at, early)
	}
	if !errors.Is(err, context.Canceled) { // else this node stopped it
		at.lost.Store(r.lostAfter(at, early, err))
		if err != nil || !early || at.lost.Load() == 0 { // an early sync leaves out what is lost
			r.note(s, at.name, err)
		}
		if err == nil && !early {
			at.progress.Complete(r.now())
		}
	}
	event := cycle.Event{Kind: cycle.Reply, Lost: at.lost.Load(), Urgent: s.table.Urgent()}
	if err != nil {
		event.Kind = cycle.Failed
	}
	return event
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
