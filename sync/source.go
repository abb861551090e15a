package ratesync

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/internal/table"
)

// A Table is one whose counts are synced.
type Table interface {
	Outbox
	Follower
}

// An Outbox is what a table has to send.
type Outbox interface {
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
	// Unsent is how many requests the store doesn't have that it should, and of how many keys.
	Unsent(now int64) (keys int, requests int64)
}

// A Follower is what a table has to know of the store.
type Follower interface {
	// SetLost sets the shards of which the store can't be reached, a bit each.
	SetLost(shards uint64)
	// SetClock sets how far the store's clock is ahead of now, the node's.
	SetClock(now int64, ahead, uncertainty time.Duration)
	// Forgotten notes that the store has forgotten the totals of all keys, and returns how many
	// keys there are. ResendRest makes those dirty that were not sent again since.
	Forgotten() (keys int)
	ResendRest()
	// ResetAcks prepares for another store, which has confirmed nothing.
	ResetAcks()
}

// A Source is what the sync knows of one table. It lives as long as its table: the name of its node
// and its sequence numbers go on when a reload attaches it to another Replicator, so that no total
// is ever taken for another one's.
type Source struct {
	table Table
	spec  Spec
	node  string
	seq   atomic.Int64
	wake  Waker

	bans atomic.Pointer[Bans] // that go along, nil for none

	// pending is what a strict zone's node has decided alone and Redis has not confirmed.
	pending pendingCharges

	mu   sync.Mutex  // one Attach or Detach at a time
	last *attachment // the latest one, also when it has ended
	at   atomic.Pointer[attachment]
}

// attachment is a Source at a Replicator.
type attachment struct {
	to     *Replicator
	name   string // in the list of what fails
	cancel func()
	done   chan struct{} // closed when the loop has ended

	rate atomic.Int64  // nanoseconds
	lost atomic.Uint64 // the shards for which the last sync failed, a bit each
	// charges is nil where totals are synced.
	charges atomic.Pointer[Charger]
	due     atomic.Bool // all that is dirty is to be synced at once
	// rest is when what the server has forgotten is sent again that had no request since, by the
	// node's clock; 0 never.
	rest atomic.Int64
	// behind is set if the last sync took most of the interval, or while a flush waits for this
	// one.
	behind atomic.Bool

	flushes chan *flushRequest
	// Only the loop uses these, and the calls that it waits for: whether a flush waits for them,
	// and which shards have failed and have answered in this cycle.
	flushing         bool
	failed, answered uint64

	progress Progress
}

// charger is nil where totals are synced.
func (at *attachment) charger() Charger {
	if c := at.charges.Load(); c != nil {
		return *c
	}
	return nil
}

// NewSource returns the Source of a table, with a random name of a node.
func NewSource(t Table, spec Spec) *Source {
	return &Source{table: t, spec: spec, node: NewNode(), wake: NewWaker()}
}

// Node is the field of this table's counts in the store.
func (s *Source) Node() string { return s.node }

// Wake asks for a sync of the urgent keys. It never waits.
func (s *Source) Wake() { s.wake.Wake() }

// Lost returns the shards for which the last sync failed or whose server does not answer, for
// LostFor; all or none where there is no Cluster. A table that is not attached has lost nothing:
// its configuration is about to begin or to end.
func (s *Source) Lost() uint64 {
	at := s.at.Load()
	if at == nil {
		return 0
	}
	return at.lost.Load() | at.to.lost.Load()
}

// unsent is how many requests the store doesn't have that it should. some reports whether there is
// anything to send, with the bans that go along.
func (s *Source) unsent(now int64) (requests int64, some bool) {
	_, requests = s.table.Unsent(now)
	bans := s.bans.Load()
	return requests, requests > 0 || bans != nil && bans.HasUnsent()
}

// Status returns how far the sync has come, nil where the table is not attached.
func (s *Source) Status() *TableStatus {
	if at := s.at.Load(); at != nil {
		return at.progress.Status()
	}
	return nil
}
