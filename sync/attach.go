package ratesync

import (
	"context"
	"time"
)

// Attach begins to sync a table every rate, or changes the rate. A table that was attached to
// another Replicator leaves it and brings its counts along. Attach doesn't wait for the network.
func (r *Replicator) Attach(s *Source, rate time.Duration) {
	r.attach(s, rate, nil)
}

// AttachCharged is Attach for a table whose decisions are charged in place of being synced.
func (r *Replicator) AttachCharged(s *Source, rate time.Duration, c Charger) { r.attach(s, rate, &c) }

func (r *Replicator) attach(s *Source, rate time.Duration, c *Charger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.at.Load()
	if old != nil && old.to == r {
		old.rate.Store(int64(rate))
		old.charges.Store(c)
		// A zone that asks Redis from now on must find there what was counted until now.
		old.due.Store(true)
		s.Wake()
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	at := &attachment{
		to: r, name: s.spec.Zone + " " + s.spec.Window.String(), cancel: cancel, done: make(chan struct{}), flushes: make(chan *flushRequest),
	}
	at.rate.Store(int64(rate))
	at.charges.Store(c)
	last := s.last
	s.last = at
	s.at.Store(at)
	r.Start()
	r.mu.Lock()
	r.sources[s] = struct{}{}
	r.mu.Unlock()
	if old != nil {
		old.to.leave(s, old)
	}
	go func() {
		defer close(at.done)
		if last != nil {
			<-last.done // its last answers are in
			if last.to != r {
				s.dropCharges(r.now())
				s.table.ResetAcks()
				if bans := s.bans.Load(); bans != nil {
					bans.Resend()
				}
			}
		}
		r.serve(ctx, s, at)
	}()
}

// Detach ends the sync of a table, wherever it is attached, and sends before what is unsent; that
// takes two seconds at most. Tables that are detached one after the other share these two seconds:
// all that have something unsent are synced when the first of them leaves. Detach doesn't wait for
// a server that can't be reached. What could not be sent is logged.
func (s *Source) Detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.at.Load()
	if at == nil {
		return
	}
	reason := at.to.flush(s, at)
	s.at.Store(nil)
	at.to.leave(s, at)
	if reason != "" {
		at.to.noteUnsent(s, reason)
	}
	s.dropCharges(at.to.now())
}

// DetachFrom is Detach if the table is attached to r, and nothing otherwise.
func (s *Source) DetachFrom(r *Replicator) {
	if at := s.at.Load(); at != nil && at.to == r {
		s.Detach()
	}
}

// leave ends a table's loop, without waiting for it.
func (r *Replicator) leave(s *Source, at *attachment) {
	at.cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving.Go(func() { <-at.done })
	delete(r.sources, s)
	r.health.Forget(at.name)
}
