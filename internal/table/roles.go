package table

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// Synced is what the sync asks of a table, whatever its algorithm.
type Synced interface {
	// MakeOutgoing makes the keys outgoing that are dirty now.
	MakeOutgoing()
	// Urgent reports whether some keys should not wait for the next MakeOutgoing.
	Urgent() bool
	// TakeUpdates takes out the updates of outgoing keys, or of urgent ones, by the number of a
	// call. Each comes back through Merge or Unanswered. server is the store's clock at the answer.
	// Merge reports whether the store has forgotten what it had confirmed.
	TakeUpdates(now, seq int64, most int, urgent bool, dst []Update) []Update
	Merge(now, server int64, updates []Update, replies []cell.Reply) (forgot bool)
	Unanswered(updates []Update)
	// Unsent is how many requests the store doesn't have that it should, and of how many keys.
	// corrections is of how many other keys it has something else than it should.
	Unsent(now int64) (keys int, requests int64, corrections int)

	// SetMissedTwice sets the shards that two syncs have missed, a bit each.
	SetMissedTwice(shards uint64)
	// SetClock sets how far the store's clock is ahead of now, the node's.
	SetClock(now int64, ahead, uncertainty time.Duration)
	// Forgotten notes that the store has forgotten the totals of all keys, or may have, and returns
	// how many keys there are. ResendRest makes those dirty that were not sent again since.
	Forgotten(now int64, sure bool) (keys int)
	ResendRest()
	// ResetAcks prepares for another store, which has confirmed nothing.
	ResetAcks()
}

// Strict is what Redis decides by in one limit.
type Strict interface {
	Recall(l algorithms.Limit, key keys.Key, now, n int64, want algorithms.Want) (taken Taken, ok bool)
	GrantUpdate(l algorithms.Limit, key keys.Key, raw []byte, now, seq int64) (m Update, busy, ok bool)
	GrantAnswered(now, server int64, update *Update, reply *cell.Reply, all []GrantRequest, dst []Taken) (took []Taken, forgot bool)
	GrantUnanswered(update *Update)
	Merge(now, server int64, updates []Update, replies []cell.Reply) (forgot bool)
	Refund(l algorithms.Limit, key keys.Key, t Taken, n int64)
	ReservationOf(l algorithms.Limit, key keys.Key, t Taken) Reserved
	Settle(key keys.Key, r Reserved, now, m int64)
}
