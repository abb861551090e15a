package ratesync

import (
	"context"
	"math/bits"
	"time"

	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
)

// MaxLate is how often a request asks again because a call was late though Redis is there.
const MaxLate = 2

// Take has Redis decide whether a request gets a slot. An error means that it has not, and so does
// the context's end; a slot that comes later is free again. Of a key, one call is on its way at a
// time, and requests that come meanwhile share the next one. A request that this node alone has no
// slot for asks nobody, and neither does one of a key beyond max_keys.
func (s *Slots) Take(ctx context.Context, src *SlotSyncer, a *gauge.Ask) (gauge.Slot, gauge.State, error) {
	if src.IsUnavailable(a.Raw) {
		return gauge.Slot{}, gauge.State{}, redisconn.ErrDown
	}
	w, m, slot, state := src.table.Join(a)
	if w == nil {
		return slot, state, nil
	}
	if m.Wanted > 0 {
		s.ask(src, m)
	}
	select {
	case <-w.Done:
		if w.Err != nil && redisconn.IsLate(w.Err) {
			s.timeouts.Add(1)
		}
		return w.Slot, w.State, w.Err
	case <-ctx.Done():
		src.table.Leave(w, a)
		return gauge.Slot{}, gauge.State{}, ctx.Err()
	}
}

// ask makes calls for a key until no request waits for it. Its caller waits only where
// the Replicator was closed.
func (s *Slots) ask(src *SlotSyncer, m gauge.Message) {
	calls := func() {
		for more := true; more; {
			a, err := s.decide(src, m)
			if err != nil {
				src.table.Fail(&m, err)
				return
			}
			m, more = src.table.Ack(&m, a)
		}
	}
	if !s.r.work.Go(calls) {
		calls() // the Replicator has been closed, and so has its client soon
	}
}

// decide makes a call, and again where it was not answered in time: a node whose processors are
// busy is late, and the answer says all there is to say, however often it is asked for. After that
// nobody waits until the sync in the background finds Redis back.
func (s *Slots) decide(src *SlotSyncer, m gauge.Message) (a gauge.Answer, err error) {
	for range 1 + MaxLate {
		var all []slotAnswer
		if all, err = s.callInTime(src, m); err == nil {
			return all[0].Answer, all[0].err
		}
		if !redisconn.IsLate(err) {
			break
		}
	}
	if a := src.current.Load(); a != nil && redisconn.IsSevere(err) {
		if shards := shardsWith(s.r.cluster, m.ID); a.missed.Or(shards)&shards != shards {
			s.trips.Add(1)
		}
	}
	return a, err
}

// Status tells of the requests of zones with sync_rate strict: how many shards they don't wait for,
// how often one became missed, and how many requests have waited until the timeout.
func (s *Slots) Status() (missed int, trips, timeouts int64) {
	var shards uint64
	s.r.mu.Lock()
	for l := range s.links {
		if l.syncer.(*SlotSyncer).table.IsStrict() {
			shards |= l.UnavailableShards()
		}
	}
	s.r.mu.Unlock()
	return bits.OnesCount64(shards), s.trips.Load(), s.timeouts.Load()
}

// callInTime makes a call that requests wait for.
func (s *Slots) callInTime(src *SlotSyncer, m gauge.Message) ([]slotAnswer, error) {
	ctx, cancel := CallContext(context.Background(), time.Duration(s.strictTimeout.Load()))
	defer cancel()
	return s.call(ctx, src, []gauge.Message{m})
}

// Look asks what the other nodes have of a key, and changes nothing. Where a request would not ask,
// it does not either: full is set where this node alone has all slots.
func (s *Slots) Look(src *SlotSyncer, id keys.ID, full bool) (others int64, err error) {
	if HasShardOf(src.UnavailableShards(), id) {
		return 0, redisconn.ErrDown
	}
	if full {
		return 0, nil
	}
	all, err := s.callInTime(src, gauge.Message{ID: id, Ask: true})
	if err != nil {
		return 0, err
	}
	return all[0].Others, all[0].err
}
