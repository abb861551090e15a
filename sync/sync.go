package ratesync

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/internal/table"
)

// messageBuffers are as long as one round of calls needs.
var messageBuffers = sync.Pool{New: func() any { return new([]table.Message) }}

// sync sends what is due, or what is urgent, and merges the answers. It returns the last error of
// any batch.
//
// Many keys are synced slowly: one call at a time, with as much rest in between as the call
// took, and what becomes urgent meanwhile goes first. So requests, and the server's other users,
// find a free processor. Where a quarter of the interval is over by then, or the sync before took
// most of it, the rest goes as fast as it can.
func (r *Replicator) sync(ctx context.Context, s *Source, at *attachment, urgent bool) error {
	if c := at.charger(); c != nil {
		return s.charge(ctx, at, c)
	}
	s.dropCharges(r.now())
	if !urgent {
		s.resendRest(at, r.now())
		s.table.Tick()
	}
	kept := messageBuffers.Get().(*[]table.Message)
	defer messageBuffers.Put(kept)
	buf := *kept
	defer func() { *kept = buf[:0] }()
	begun, rate := time.Now(), time.Duration(at.rate.Load())
	fast := urgent || at.behind.Load()
	var failed error
	for {
		most := r.round(fast)
		start := time.Now()
		buf = s.table.Drain(r.now(), most, urgent, buf[:0])
		if len(buf) == 0 {
			break
		}
		if err := r.send(ctx, s, at, buf, urgent); err != nil {
			if !r.cluster || at.answered == 0 || ctx.Err() != nil {
				return err
			}
			failed = err // the rest of the cluster goes on
		}
		if len(buf) < most {
			break
		}
		if !urgent && s.table.Urgent() {
			if err := r.sync(ctx, s, at, true); err != nil {
				if !r.cluster {
					return err
				}
				failed = err
			}
		}
		if fast = fast || at.behind.Load() || time.Since(begun) > rate/4; !fast {
			pauseFor(ctx, time.Since(start))
		}
	}
	if !urgent {
		at.behind.Store(time.Since(begun) > rate-rate/4)
	}
	return failed
}

// round returns how many messages are taken out at once. In a cluster they belong to 64 shards, and
// go in as many calls.
func (r *Replicator) round(fast bool) int {
	switch {
	case r.cluster:
		return batchSize * 32
	case fast:
		return roundSize
	}
	return batchSize
}

// send makes batches of messages and sends them, a few at a time. In a Cluster nothing is sent to
// shards that are lost.
func (r *Replicator) send(ctx context.Context, s *Source, at *attachment, messages []table.Message, urgent bool) error {
	if r.cluster {
		slices.SortStableFunc(messages, func(a, b table.Message) int { return ShardOf(a.ID) - ShardOf(b.ID) })
	}
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed error
		slots  = make(chan struct{}, parallel)
	)
	for len(messages) > 0 {
		n := r.cut(messages)
		batch := messages[:n]
		messages = messages[n:]
		slots <- struct{}{}
		shards := r.ShardsOf(batch[0].ID)
		mu.Lock()
		known := at.failed
		mu.Unlock()
		if skip, err := r.skips(at, shards, known, urgent); skip {
			s.table.Fail(batch)
			if err != nil {
				mu.Lock()
				failed, at.failed = err, at.failed|shards
				mu.Unlock()
			}
			<-slots
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			err := r.batch(ctx, s, at, batch)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				at.failed |= shards
			} else {
				at.answered |= shards
			}
		})
	}
	wg.Wait()
	return failed
}

// cut returns how many messages go into one call: those of one key stay together, and in a cluster
// all are of one shard.
func (r *Replicator) cut(messages []table.Message) int {
	for n := 1; n < len(messages); n++ {
		if messages[n].Key == messages[n-1].Key {
			continue
		}
		if n >= batchSize || r.cluster && ShardOf(messages[n].ID) != ShardOf(messages[0].ID) {
			return n
		}
	}
	return len(messages)
}
