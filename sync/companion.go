package ratesync

import (
	"cmp"
	"context"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// Carry has a companion go along with the sync of this table from now on.
func (s *Source) Carry(c table.Companion) { s.carried.Store(&c) }

func (s *Source) companion() table.Companion {
	if c := s.carried.Load(); c != nil {
		return *c
	}
	return table.NoCompanion{}
}

// syncAll syncs what goes along, and then the table. In a Cluster a part that fails keeps nothing
// else from being synced.
func (r *Replicator) syncAll(ctx context.Context, s *Source, at *attachment, urgent bool) error {
	failed, err := s.companion().Send(ctx, r.callTime(at), r.lost.Load())
	if err != nil && !r.cluster {
		return err
	}
	at.failed |= failed
	return cmp.Or(r.sync(ctx, s, at, urgent), err)
}

func (r *Replicator) callTime(at *attachment) time.Duration {
	return cycle.CallTime(r.timeout, time.Duration(at.rate.Load()), r.RoundTrip())
}
