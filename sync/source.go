package ratesync

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/internal/table"
)

// Counters is a table whose counts are synced.
type Counters interface {
	Outbox
	Follower
}

// An Outbox has what a table has to say to the store.
type Outbox interface {
	// Tick makes what was touched until now due.
	Tick()
	// Urgent reports whether some keys should not wait for the next Tick.
	Urgent() bool
	// Drain takes messages of due keys out, or of urgent ones. Each comes back through Settle or
	// Fail.
	Drain(now int64, most int, urgent bool, dst []table.Message) []table.Message
	// Settle merges answers. It reports whether the store has forgotten what it had confirmed.
	Settle(now int64, answers []table.Answer) (forgot bool)
	Fail(messages []table.Message)
	// Unsent is how many requests the store doesn't have that it should, and of how many keys.
	Unsent(now int64) (keys int, requests int64)
}

// A Follower is told of the store.
type Follower interface {
	// SetLost says of which shards the store can't be reached, a bit each.
	SetLost(shards uint64)
	// SetClock says how far the store's clock is ahead of now, the node's.
	SetClock(now int64, ahead, uncertainty time.Duration)
	// Resend has all live totals sent again.
	Resend()
	// Adopt prepares for another store.
	Adopt()
}

// A Source is one table on its way to a store. It lives as long as its table: its number of the node and its sequence go on
// when a reload attaches it elsewhere, so that no total is ever taken for another's.
type Source struct {
	counters Counters
	spec     Spec
	node     string
	seq      atomic.Int64
	wake     chan struct{}

	// bills are what a strict zone's node has decided alone and Redis has not confirmed.
	bills bills

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
	lost atomic.Uint64 // the shards for which the last exchange failed, a bit each
	// charges is nil where totals are exchanged.
	charges atomic.Pointer[Charger]
	due     atomic.Bool // an exchange of all that is touched, at once
	// behind says that the last exchange took most of the interval, or that a flush waits for this one.
	behind atomic.Bool

	flushes chan *flushRequest
	// Only the loop uses these, and the calls that it waits for: whether a flush waits for them, and which shards have failed and have answered in this turn.
	flushing         bool
	failed, answered uint64

	turns  atomic.Int64 // that were completed
	synced atomic.Int64 // when the last of them was, nanoseconds since the epoch
}

// ExchangeStatus is how far the exchange of one table has come. In a turn all that was touched since the one before is due.
type ExchangeStatus struct {
	// Turns is how many were completed since the table was attached: all that was due was sent and answered. Where nothing was due, that is at once.
	Turns int64 `json:"turns"`
	// Synced is when the last of them was completed, zero if none.
	Synced time.Time `json:"synced"`
}

// complete notes that a turn has ended.
func (at *attachment) complete(now int64) {
	at.synced.Store(now)
	at.turns.Add(1)
}

// charger is nil where totals are exchanged.
func (at *attachment) charger() Charger {
	if c := at.charges.Load(); c != nil {
		return *c
	}
	return nil
}

// NewSource gives a table a random number of its own.
func NewSource(c Counters, spec Spec) *Source {
	return &Source{counters: c, spec: spec, node: NewNode(), wake: make(chan struct{}, 1)}
}

// Node is the field of this table's counts in the store.
func (s *Source) Node() string { return s.node }

// Wake asks for an exchange of the urgent keys. It never waits.
func (s *Source) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Lost are the shards for which the last exchange failed or whose server does not answer, for LostFor; all or none where there is no Cluster. A table that is
// not attached has lost nothing: its configuration is about to begin or to end.
func (s *Source) Lost() uint64 {
	at := s.at.Load()
	if at == nil {
		return 0
	}
	return at.lost.Load() | at.to.lost.Load()
}

// Status tells how the exchange goes, nil where the table is not attached.
func (s *Source) Status() *ExchangeStatus {
	at := s.at.Load()
	if at == nil {
		return nil
	}
	status := &ExchangeStatus{Turns: at.turns.Load()}
	if synced := at.synced.Load(); synced != 0 {
		status.Synced = time.Unix(0, synced)
	}
	return status
}
