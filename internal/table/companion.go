package table

import (
	"context"
	"time"
)

// A Companion goes along with the sync of a table: the bans of its zone, see package bans.
type Companion interface {
	// HasUnsent reports whether there is something to Send, except to shards that are lost, a bit
	// each. Each answer of a call takes timeout at most. Send returns the shards that failed.
	HasUnsent() bool
	Send(ctx context.Context, timeout time.Duration, lost uint64) (failed uint64, err error)
	// Read asks for what stands of the keys of messages, which are about to be sent.
	Read(ctx context.Context, timeout time.Duration, messages []Message) error
	// Resend has all be sent again.
	Resend()
	// SetClock says how far the server's clock is ahead.
	SetClock(ahead time.Duration)
}

// NoCompanion is the companion of a table that has none.
type NoCompanion struct{}

// HasUnsent reports false, and the others do nothing.
func (NoCompanion) HasUnsent() bool { return false }
func (NoCompanion) Send(context.Context, time.Duration, uint64) (failed uint64, _ error) {
	return 0, nil
}
func (NoCompanion) Read(context.Context, time.Duration, []Message) error { return nil }
func (NoCompanion) Resend()                                              {}
func (NoCompanion) SetClock(time.Duration)                               {}
