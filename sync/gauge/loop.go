package gaugesync

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

const (
	// parallel is how many calls of one table are in flight at once.
	parallel = 4
	// roundSize is how many messages are taken out of a table at once.
	roundSize = 10 * cycle.BatchSize
)

// serve drives a table's loop: a sync every rate, and early ones for urgent keys in between.
func (s *Syncer) serve(ctx context.Context, src *Source, at *attachment) {
	var state cycle.State
	began := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		event := cycle.Event{Kind: cycle.Tick}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-src.wake:
			event.Kind = cycle.Wake
		}
		rate := min(time.Duration(at.rate.Load()), gauge.Refresh)
		next, action, wait := state.Next(event, time.Since(began), rate)
		if action != cycle.Await {
			event = s.cycle(ctx, src, at, action == cycle.SyncAll)
			next, _, wait = next.Next(event, time.Since(began), rate)
		}
		state = next
		timer.Reset(wait)
	}
}

// cycle is one sync cycle of a table, early or not, and what is noted of it.
func (s *Syncer) cycle(ctx context.Context, src *Source, at *attachment, all bool) cycle.Event {
	lost, err := s.sync(ctx, src, all)
	if ctx.Err() == nil {
		at.lost.Store(lost)
		if err != nil || all && at.failing { // what has failed is sent again with all
			at.failing = err != nil
			s.replicator.Report(src.zone+" concurrent", err)
		}
		if err == nil && all {
			at.progress.Complete(s.now())
		}
	}
	event := cycle.Event{Kind: cycle.Reply, Lost: lost, Urgent: src.table.Urgent()}
	if err != nil {
		event.Kind = cycle.Failed
	}
	return event
}

// sync sends what is urgent, and with all what is due. It returns the shards that were not reached,
// and the last error. What a shard doesn't take is due again with the next cycle.
func (s *Syncer) sync(ctx context.Context, src *Source, all bool) (lost uint64, failed error) {
	if all && !src.table.Tick(s.now()) {
		return 0, nil
	}
	if s.replicator.Lost() == cycle.AllShards {
		return cycle.AllShards, redisconn.ErrDown
	}
	var messages []gauge.Message
	for {
		messages = src.table.Drain(s.now(), all, roundSize, messages[:0])
		away, err := s.send(ctx, src, messages)
		if lost |= away; err != nil {
			failed = err
		}
		if len(messages) < roundSize || lost == cycle.AllShards || ctx.Err() != nil {
			return lost, failed
		}
	}
}

// send makes batches of messages and sends them, a few at a time. In a Cluster nothing is sent to
// shards that are lost.
func (s *Syncer) send(ctx context.Context, src *Source, messages []gauge.Message) (lost uint64, failed error) {
	if s.cluster {
		slices.SortStableFunc(messages, func(a, b gauge.Message) int { return ratesync.ShardOf(a.ID) - ratesync.ShardOf(b.ID) })
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		slots = make(chan struct{}, parallel)
	)
	for len(messages) > 0 {
		batch := messages[:s.cut(messages)]
		messages = messages[len(batch):]
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			err := s.batch(ctx, src, batch)
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			failed = err
			if redisconn.IsSevere(err) || errors.Is(err, redisconn.ErrDown) {
				lost |= s.replicator.ShardsOf(batch[0].ID)
			}
		})
	}
	wg.Wait()
	return lost, failed
}

// cut returns how many messages go into one call: in a Cluster all are of one shard.
func (s *Syncer) cut(messages []gauge.Message) int {
	n := min(len(messages), cycle.BatchSize)
	if s.cluster {
		for i := range messages[:n] {
			if ratesync.ShardOf(messages[i].ID) != ratesync.ShardOf(messages[0].ID) {
				return i
			}
		}
	}
	return n
}

// batch is one call of the script. Its messages are acknowledged or failed when it returns.
func (s *Syncer) batch(ctx context.Context, src *Source, messages []gauge.Message) error {
	if s.replicator.Lost()&s.replicator.ShardsOf(messages[0].ID) != 0 {
		return s.fail(src, messages, redisconn.ErrDown)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	all, err := s.call(ctx, src, messages)
	if err != nil {
		return s.fail(src, messages, err)
	}
	return s.ack(src, messages, all)
}

// ack takes answers in. It returns the last error of a key.
func (s *Syncer) ack(src *Source, messages []gauge.Message, all []result) (failed error) {
	for i := range messages {
		if err := all[i].err; err != nil {
			src.table.Fail(&messages[i], err)
			failed = err
		} else if next, more := src.table.Ack(&messages[i], all[i].Answer); more {
			go s.ask(src, next)
		}
	}
	return failed
}

func (s *Syncer) fail(src *Source, messages []gauge.Message, err error) error {
	for i := range messages {
		src.table.Fail(&messages[i], err)
	}
	return err
}
