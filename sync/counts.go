package ratesync

import (
	"context"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/table"
)

func (r *Replicator) callTime(a *attachment) time.Duration {
	return cycle.CallTime(r.timeout, time.Duration(a.interval.Load()), r.RoundTrip())
}

// syncTable sends what is due, or what is urgent, and merges the answers. It returns the last error
// of any batch.
//
// Many keys are synced slowly: one call at a time, with as much rest in between as the call
// took, and what becomes urgent meanwhile goes first. So requests, and the server's other users,
// find a free processor. Where a quarter of the interval is over by then, or the sync before took
// most of it, the rest goes as fast as it can.
func (s *TableSyncer) syncTable(ctx context.Context, a *attachment, urgent bool) error {
	if !urgent {
		s.table.MakeOutgoing()
	}
	r := a.group.r
	x := &cellsOut{s: s, a: a}
	x.sender = sender[table.Update]{out: x, cluster: r.cluster, buffers: &cellBuffers, semaphore: make(chan struct{}, parallel), failed: a.failed}
	if r.cluster {
		x.nextCycle = a.missed.Load()
	}
	begun, interval, most := time.Now(), time.Duration(a.interval.Load()), r.roundSize()
	fast := urgent || a.catchesUp.Load()
	for {
		start := time.Now()
		n := x.nextRound(ctx, most, urgent)
		if !fast {
			x.calls.Wait()
		}
		if n < most {
			break
		}
		for !urgent && s.table.Urgent() && x.nextRound(ctx, most, true) == most {
		}
		if fast = fast || a.catchesUp.Load() || time.Since(begun) > interval/4; !fast {
			x.calls.Wait()
			pauseFor(ctx, time.Since(start))
		}
	}
	x.calls.Wait()
	if !urgent && !x.isOver(ctx) {
		a.catchesUp.Store(time.Since(begun) > interval-interval/4)
	}
	a.failed, a.answered = x.failed, x.answered
	return x.err
}

// roundSize returns how many messages are taken out at once: those of one call, and in a cluster,
// where they belong to 64 shards, those of 32 calls.
func (r *Replicator) roundSize() int {
	if r.cluster {
		return batchSize * 32
	}
	return batchSize
}

// unavailableBy are the shards of a Cluster that are unavailable, of which some have failed.
func unavailableBy(a *attachment, failed uint64) uint64 {
	if r := a.group.r; r.cluster {
		return r.unreachable.Load() | failed
	}
	return 0
}
