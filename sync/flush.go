package ratesync

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/redisconn"
)

const (
	flushTime = 2 * time.Second
	// closeLeast is what Close waits where a flush has taken all of flushTime.
	closeLeast = 200 * time.Millisecond
	// flushShared is how long after its two seconds a flush speaks for the tables that leave.
	flushShared = time.Second
)

// A flush is one sync of all tables that have something unsent, side by side. The first table
// that leaves begins it, and those that leave after it share it: a node with many tables ends as
// fast as one with a single table.
type flush struct {
	until time.Time
	done  chan struct{}

	mu      sync.Mutex
	flushed map[*Source]flushed
}

// flushed is what a flush did for one table.
type flushed struct {
	err  error
	left int64 // requests that are unsent for all that, as another program uses their keys
}

// flushRequest asks a table's loop for a sync of all dirty keys.
type flushRequest struct {
	ctx    context.Context
	answer chan error
}

// flush sends the last counts of a table that is about to leave. It returns the reason why that
// failed, "" if there is nothing left to send. It takes flushTime at most, and no time for a
// server that is known to be lost or that has just failed to take them.
func (r *Replicator) flush(s *Source, at *attachment) (reason string) {
	for began := time.Now(); ; {
		requests, some := s.unsent(r.now())
		if !some {
			return ""
		}
		// Not at.lost: the next cycle, which would find the server back, may be an hour away.
		if r.lost.Load() == allShards {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.health.Reason(at.name)
		}
		f := r.currentFlush(s, requests)
		<-f.done
		switch was, ok := f.flushed[s]; {
		case !ok: // it was attached after the flush had begun
		case was.err != nil:
			return redisconn.Classify(was.err)
		case was.left == requests || f.until.After(began.Add(flushTime)):
			return "" // what came during a flush of its own is not waited for
		}
	}
}

// noteUnsent logs the last counts of a table that could not be sent, if there are any.
func (r *Replicator) noteUnsent(s *Source, reason string) {
	keys, requests := s.table.Unsent(r.now())
	if requests == 0 {
		return
	}
	r.log(func(h *Health, now time.Time) *LogEntry {
		return h.NotSent(s.spec.Zone, keys, requests, reason, now)
	})
}

// currentFlush returns the last flush if it is under way or has reported a table with so many
// unsent requests, and begins another one if not.
func (r *Replicator) currentFlush(s *Source, requests int64) *flush {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.flushing; f != nil {
		select {
		case <-f.done:
			was, ok := f.flushed[s]
			if ok && time.Now().Before(f.until.Add(flushShared)) && (was.err != nil || was.left == requests) {
				return f
			}
		default:
			return f
		}
	}
	f := &flush{until: time.Now().Add(flushTime), done: make(chan struct{}), flushed: make(map[*Source]flushed)}
	r.flushing = f
	go r.flushAll(f, slices.Collect(maps.Keys(r.sources)))
	return f
}

// flushAll is one flush.
func (r *Replicator) flushAll(f *flush, sources []*Source) {
	defer close(f.done)
	ctx, cancel := context.WithDeadline(context.Background(), f.until)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range sources {
		at := s.at.Load()
		if at == nil || at.to != r {
			continue
		}
		wg.Go(func() {
			var was flushed
			var some bool
			if was.left, some = s.unsent(r.now()); some {
				was.err = at.flush(ctx)
				was.left, _ = s.unsent(r.now())
			}
			f.mu.Lock()
			f.flushed[s] = was
			f.mu.Unlock()
		})
	}
	wg.Wait()
}

// flush has the table's loop sync once more and waits for that.
func (at *attachment) flush(ctx context.Context) error {
	at.behind.Store(true) // a slow sync goes on without a rest
	request := &flushRequest{ctx, make(chan error, 1)}
	select {
	case at.flushes <- request:
		return <-request.answer
	case <-at.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// syncLast is sync for a flush: a call has as much time as the flush, and one that got no
// connection, as so many were wanted at once, is made again.
func (r *Replicator) syncLast(ctx context.Context, s *Source, at *attachment) error {
	at.flushing = true
	defer func() { at.flushing = false }()
	for {
		at.failed = 0
		at.behind.Store(true)
		err := r.syncAll(ctx, s, at, false)
		if !errors.Is(err, redis.ErrPoolTimeout) || ctx.Err() != nil {
			return err
		}
	}
}

// FlushEnds is when what ends together with the last table has to be over: a flush that has just
// been there has taken a part of the time that all of it may take.
func (r *Replicator) FlushEnds() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if f := r.flushing; f != nil && now.Before(f.until.Add(flushShared)) {
		return now.Add(max(f.until.Sub(now), closeLeast))
	}
	return now.Add(flushTime)
}
