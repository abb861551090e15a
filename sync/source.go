package ratesync

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A Table is one whose counts are synced.
type Table interface {
	// Tick makes the keys due that are dirty now.
	Tick()
	// Urgent reports whether some keys should not wait for the next Tick.
	Urgent() bool
	// Drain takes out messages of due keys, or of urgent ones. Each comes back through Ack or Fail.
	Drain(now int64, most int, urgent bool, dst []table.Message) []table.Message
	// Ack merges answers. It reports whether the store has forgotten what it had confirmed.
	Ack(now int64, answers []table.Answer) (forgot bool)
	// Fail makes the keys of messages without an answer dirty again.
	Fail(messages []table.Message)
	// Say, Hear and Unheard are the same of tables whose keys are cells, by the number of a call.
	// server is the store's clock at the answer.
	Say(now, seq int64, most int, urgent bool, dst []table.Said) []table.Said
	Hear(now, server int64, said []table.Said, heard []cell.Heard) (forgot bool)
	Unheard(said []table.Said)
	// Unsent is how many requests the store doesn't have that it should, and of how many keys.
	// corrections is of how many other keys it has something else than it should.
	Unsent(now int64) (keys int, requests int64, corrections int)

	// SetLost sets the shards of which the store can't be reached, a bit each.
	SetLost(shards uint64)
	// SetClock sets how far the store's clock is ahead of now, the node's.
	SetClock(now int64, ahead, uncertainty time.Duration)
	// Forgotten notes that the store has forgotten the totals of all keys, or may have, and returns
	// how many keys there are. ResendRest makes those dirty that were not sent again since.
	Forgotten(now int64, sure bool) (keys int)
	ResendRest()
	// ResetAcks prepares for another store, which has confirmed nothing.
	ResetAcks()
}

// A Source is what the sync knows of one table.
type Source struct {
	link
	table Table
	spec  Spec

	bans atomic.Pointer[Bans] // that go along, nil for none
	// least is how much of a key other regions have to know of, 0 where they are told of none, and
	// most how much a key may have.
	least, most atomic.Int64

	// family and opening are how the script of cells counts, the second where what is granted is
	// open; "" of a table whose keys are no cells.
	family, opening string

	// late is how often it was to be said of a table whose zone has gone what has changed.
	late atomic.Int32

	// pending is what a strict zone's node has decided alone and Redis has not confirmed.
	pending pendingCharges
}

// NewSource returns the Source of a table, with a random name of a node.
func NewSource(t Table, spec Spec) *Source {
	s := &Source{table: t, spec: spec}
	if spec.IsCells() {
		s.family, s.opening = spec.Family(false).String(), spec.Family(true).String()
	}
	s.init(s, spec.Zone+" "+spec.Window.String())
	return s
}

// Cells are the keys of the table's cells.
func (s *Source) Cells(in Keyspace) Keys { return in.Cells(s.spec) }

// FoundLoss notes that the server has lost something that it had confirmed.
func (s *Source) FoundLoss() {
	if at := s.at.Load(); at != nil {
		at.to.r.foundLoss()
	}
}

// leastPart is the part of a limit, 1/leastPart, that other regions have to know of.
const leastPart = 64

// LeastTold is how much of a limit other regions have to know of: what is below a sixty-fourth of
// it is told to none. Of a bucket that is in each of two epochs.
func LeastTold(p algorithms.Params) int64 {
	l, least := p.Compile(), int64(leastPart)
	if p.Kind.Traits().Draining {
		least *= 2
	}
	return max(1, min(l.N, l.Size)/least)
}

// Tell has other regions told of what a key has in this one from so much on, 0 for nothing. Where
// they can't be told of all at once, the keys come first that have most of what they may have.
func (s *Source) Tell(least, most int64) {
	s.least.Store(least)
	s.most.Store(most)
}

// Attach begins to sync a table every rate, or changes the rate. A table that was attached to
// another Replicator leaves it and brings its counts along. Attach doesn't wait for the network.
func (r *Replicator) Attach(s *Source, rate time.Duration) { r.attach(s, rate, nil) }

// AttachCharged is Attach for a table whose decisions are charged in place of being synced.
func (r *Replicator) AttachCharged(s *Source, rate time.Duration, c Charger) { r.attach(s, rate, &c) }

func (r *Replicator) attach(s *Source, rate time.Duration, c *Charger) {
	r.counts.attach(&s.link, rate, func(at *attachment) {
		at.charges.Store(c)
		// A zone that asks Redis from now on must find there what was counted until now.
		at.due.Store(true)
	})
}

// DetachFrom is Detach if the table is attached to r, and nothing otherwise.
func (s *Source) DetachFrom(r *Replicator) {
	if at := s.at.Load(); at != nil && at.to == &r.counts {
		s.Detach()
	}
}

// charger is nil where totals are synced.
func (at *attachment) charger() Charger {
	if c := at.charges.Load(); c != nil {
		return *c
	}
	return nil
}

// sync syncs the bans that go along, and then the table. In a Cluster a part that fails keeps
// nothing else from being synced.
func (s *Source) sync(ctx context.Context, at *attachment, early bool) (lost uint64, err error) {
	r := at.to.r
	if !at.flushing {
		r.awaitRecord(ctx)
	}
	at.failed, at.answered = 0, 0
	if !early {
		s.resendRest(at, r.now())
	}
	if bans := s.bans.Load(); bans != nil {
		at.failed, err = bans.Send(ctx, r.callTime(at), r.lost.Load())
	}
	if err == nil || r.cluster {
		if why := s.syncTable(ctx, at, early); why != nil {
			err = why
		}
	}
	return r.lostAfter(at, early, err), err
}

func (s *Source) note(at *attachment, early bool, err error) {
	if err != nil || !early || at.lost.Load() == 0 { // an early sync leaves out what is lost
		at.to.r.note(&s.link, s.name, err)
	}
}

func (s *Source) urgent() bool          { return s.table.Urgent() }
func (s *Source) setLost(shards uint64) { s.table.SetLost(shards) }

func (s *Source) unsent(now int64) (n int64, some bool) {
	_, n, corrections := s.table.Unsent(now)
	n += int64(corrections)
	bans := s.bans.Load()
	return n, n > 0 || bans != nil && bans.HasUnsent()
}

func (s *Source) moved(now int64) {
	s.dropCharges(now)
	s.table.ResetAcks()
	if bans := s.bans.Load(); bans != nil {
		bans.Resend()
	}
}

func (s *Source) left(from *Replicator, reason string) {
	if keys, requests, refunded := s.table.Unsent(from.now()); reason != "" && (requests > 0 || refunded > 0) {
		from.log(func(h *Health, now time.Time) *LogEntry {
			return h.NotSent(s.spec.Zone, keys, requests, refunded, reason, now)
		})
	}
	s.dropCharges(from.now())
}
