// How a table is told to sync.

package table

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cycle"
)

// A SyncConfig is what work without a request goes by.
type SyncConfig struct {
	// Params are the limit's. Where requests reserve, other nodes are told what is settled as well,
	// and no share is estimated.
	Params algorithms.Params
	// Interval is the time between syncs, 0 where the table is not synced.
	Interval time.Duration
	// Early syncs keys before the next cycle when they are new or near their limit.
	Early bool
	// StoreDecides is set where the store decides on each request: what else changes is said at
	// once.
	StoreDecides bool
	// NoEstimates leaves out what others have probably spent unseen. A key is synced early only
	// where it was not synced lately.
	NoEstimates bool
	// LimitsVary says that limits differ from request to request. Params are then those of a
	// request without a number.
	LimitsVary bool
	// Regions is how many regions a key may be spent in before this node hears of it, 0 or 1 where
	// there is only this one.
	Regions int
	// Waker is called when there is a first urgent key.
	Waker cycle.Waker
	// After calls a function after a while, without a lock held. Nil calls none: then no key is
	// asked about before the next cycle unless a request comes.
	After func(time.Duration, func())

	// Limit and Epochs follow from Params: see Compile.
	Limit  algorithms.Limit
	Epochs algorithms.Epochs
}

// IsSynced reports whether what a table counts is synced.
func (b *SyncConfig) IsSynced() bool { return b != nil && b.Interval != 0 }

// PollsAgain reports whether keys are asked about before the next cycle without a request.
func (b *SyncConfig) PollsAgain() bool { return b.Params.Reserves && b.Early && b.After != nil }

// Compile works out what follows from the settings.
func (b *SyncConfig) Compile() *SyncConfig {
	b.Limit, b.Epochs = b.Params.Compile(), b.Params.Epochs()
	return b
}
