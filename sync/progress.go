package ratesync

import (
	"sync/atomic"
	"time"
)

// Progress is how far a loop has come. The zero Progress is that of one that begins.
type Progress struct {
	cycles atomic.Int64
	synced atomic.Int64 // nanoseconds since the Unix epoch, 0 never
}

// A TableStatus is how far the sync of one table has come. A cycle sends all that became dirty
// before it began.
type TableStatus struct {
	// Cycles is how many were completed since the table was attached: all that was due was sent and
	// answered. Where nothing was due, that is at once.
	Cycles int64 `json:"cycles"`
	// Synced is when the last of them was completed, zero if none. One in which nothing was due
	// counts only where the store answers heartbeats.
	Synced time.Time `json:"synced"`
}

// Complete notes that a cycle has ended at now, 0 for one that shows nothing of the store.
func (p *Progress) Complete(now int64) {
	if now != 0 {
		p.synced.Store(now)
	}
	p.cycles.Add(1)
}

// Status returns how far the loop has come. reached is when the store first answered, 0 for not
// yet: whoever had nothing to send until then knows all as of that.
func (p *Progress) Status(reached int64) *TableStatus {
	status := &TableStatus{Cycles: p.cycles.Load()}
	synced := p.synced.Load()
	if synced == 0 && status.Cycles > 0 {
		synced = reached
	}
	if synced != 0 {
		status.Synced = time.Unix(0, synced)
	}
	return status
}
