package gaugesync

import (
	"context"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
)

// A flush is one sync of all tables that have something to say, side by side. The first table that
// leaves begins it, and those that leave after it share it.
type flush struct {
	until time.Time
	done  chan struct{}
}

// flushShared is how long after its end a flush speaks for the tables that leave.
const flushShared = time.Second

// flush sends the last gauges of a table that is about to leave. It takes no time for a server that
// is known to be lost.
func (s *Syncer) flush(src *Source) {
	if src.table.Unsent() == 0 || s.replicator.Lost() == cycle.AllShards {
		return
	}
	s.mu.Lock()
	f := s.flushing
	if f == nil || time.Now().After(f.until.Add(flushShared)) {
		f = &flush{s.replicator.FlushEnds(), make(chan struct{})}
		s.flushing = f
		var all []*Source
		for src := range s.sources {
			all = append(all, src)
		}
		go s.flushAll(f, all)
	}
	s.mu.Unlock()
	if <-f.done; time.Now().Before(f.until) && src.table.Unsent() > 0 {
		ctx, cancel := context.WithDeadline(context.Background(), f.until)
		defer cancel()
		_, _ = s.sync(ctx, src, true) // what came during the flush of all
	}
}

// flushAll is one flush.
func (s *Syncer) flushAll(f *flush, sources []*Source) {
	defer close(f.done)
	ctx, cancel := context.WithDeadline(context.Background(), f.until)
	defer cancel()
	var wg sync.WaitGroup
	for _, src := range sources {
		wg.Go(func() { _, _ = s.sync(ctx, src, true) })
	}
	wg.Wait()
}
