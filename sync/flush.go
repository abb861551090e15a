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
	// flushShared is how long after flushTime tables that leave go by the flush before, in place of
	// one of their own.
	flushShared = time.Second
)

// A flush is one sync of all syncers of a group that have something unsent, side by side. The first
// one that leaves begins it, and those that leave after it share it: a node with many tables ends
// as fast as one with a single table.
type flush struct {
	began, until time.Time
	done         chan struct{}

	mu      sync.Mutex
	flushed map[*link]flushed
}

// flushed is what a flush did for one syncer.
type flushed struct {
	err  error
	left int64 // what is still unsent, as another program uses its keys
}

// flushRequest asks a syncer's loop for a sync of all that is dirty.
type flushRequest struct {
	ctx    context.Context
	answer chan error
}

// flush sends the last messages of a syncer that is about to leave. It returns the reason why that
// failed, "" if there is nothing left to send. It takes flushTime at most, and no time for a server
// that is known to be unreachable or that has just failed to take them.
func (g *group) flush(l *link, a *attachment) (reason string) {
	r := g.r
	for began := time.Now(); ; {
		n, some := l.syncer.unsent(r.now())
		if !some {
			return ""
		}
		// Not a.missed: the next cycle, which would find the server back, may be an hour away.
		if r.unreachable.Load() == allShards {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.health.Reason(l.name)
		}
		f := g.currentFlush(l, n)
		<-f.done
		if g.slots != nil {
			f.again(l, a)
			return ""
		}
		switch was, ok := f.flushed[l]; {
		case !ok: // it was attached after the flush had begun
		case was.err != nil:
			return redisconn.Classify(was.err)
		case was.left == n || f.began.After(began):
			return "" // what came during a flush of its own is not waited for
		}
	}
}

// currentFlush returns the last flush if it is under way or has reported a syncer with so much
// unsent, and begins another one if not.
func (g *group) currentFlush(l *link, unsent int64) *flush {
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	if f := g.flushing; f != nil {
		select {
		case <-f.done:
			was, ok := f.flushed[l]
			if time.Now().Before(f.until.Add(flushShared)) && (g.slots != nil || ok && (was.err != nil || was.left == unsent)) {
				return f
			}
		default:
			return f
		}
	}
	f := &flush{began: time.Now(), done: make(chan struct{}), flushed: make(map[*link]flushed)}
	f.until = f.began.Add(flushTime)
	if g.slots != nil { // they leave after the counts
		f.until = g.r.flushEnds()
	}
	g.flushing = f
	go g.flushAll(f, slices.Collect(maps.Keys(g.links)))
	return f
}

// again sends the slots that changed during the flush, and waits for those that were on their way:
// they count on other nodes until they are told of, or a gauge.Lease is over.
func (f *flush) again(l *link, a *attachment) {
	ctx, cancel := context.WithDeadline(context.Background(), f.until)
	defer cancel()
	for ctx.Err() == nil {
		if _, some := l.syncer.unsent(0); !some || a.flush(ctx, l) != nil {
			return
		}
		pauseFor(ctx, time.Millisecond)
	}
}

// flushAll is one flush.
func (g *group) flushAll(f *flush, links []*link) {
	defer close(f.done)
	ctx, cancel := context.WithDeadline(context.Background(), f.until)
	defer cancel()
	var wg sync.WaitGroup
	for _, l := range links {
		a := l.current.Load()
		if a == nil || a.group != g {
			continue
		}
		wg.Go(func() {
			var was flushed
			var some bool
			if was.left, some = l.syncer.unsent(g.r.now()); some {
				was.err = a.flush(ctx, l)
				was.left, _ = l.syncer.unsent(g.r.now())
			}
			f.mu.Lock()
			f.flushed[l] = was
			f.mu.Unlock()
		})
	}
	wg.Wait()
}

// flush has the syncer's loop sync once more and waits for that. Slots go beside their loop, which
// hears nothing of it: a message says all there is to say.
func (a *attachment) flush(ctx context.Context, l *link) error {
	if a.group.slots != nil {
		_, err := l.syncer.sync(ctx, a, false)
		return err
	}
	a.catchesUp.Store(true) // a slow sync goes on without a rest
	request := &flushRequest{ctx, make(chan error, 1)}
	select {
	case a.flushes <- request:
		return <-request.answer
	case <-a.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// syncLast is a sync for a flush: one that got no connection, as so many were wanted at once, is
// made again.
func (a *attachment) syncLast(ctx context.Context, l *link) (missed uint64, err error) {
	for {
		a.catchesUp.Store(true)
		missed, err = l.syncer.sync(ctx, a, false)
		if !errors.Is(err, redis.ErrPoolTimeout) || ctx.Err() != nil {
			return missed, err
		}
	}
}

// FlushEnds is when what ends together with the last table has to be over: a flush that has just
// been there has taken a part of the time that all of it may take.
func (r *Replicator) FlushEnds() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.flushEnds()
}

// flushEnds is FlushEnds; mu is held.
func (r *Replicator) flushEnds() time.Time {
	now := time.Now()
	if f := r.counts.flushing; f != nil && now.Before(f.until.Add(flushShared)) {
		return now.Add(max(f.until.Sub(now), closeLeast))
	}
	return now.Add(flushTime)
}
