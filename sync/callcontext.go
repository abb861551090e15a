package ratesync

import (
	"context"
	"time"
)

// callContext gives each answer that a call waits for the same time, from when it is asked for; and
// the call as long to get its connection. The client asks for the deadline each time it is about to
// write or to read. A deadline for the call as a whole would be past before the client looks for
// the answer, where processors are busy: how long a call has waited for a connection or a processor
// says nothing about Redis.
type callContext struct {
	context.Context
	timeout time.Duration
	timer   *time.Timer
}

// CallContext returns a context of a call, and what ends it.
func CallContext(parent context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	timer := time.AfterFunc(timeout, func() { cancel(context.DeadlineExceeded) })
	return &callContext{ctx, timeout, timer}, func() {
		timer.Stop()
		cancel(context.Canceled)
	}
}

// Deadline is later each time, and never after the parent's.
func (c *callContext) Deadline() (time.Time, bool) {
	c.timer.Reset(c.timeout)
	deadline := time.Now().Add(c.timeout)
	if end, ok := c.Context.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	return deadline, true
}

// Err is context.DeadlineExceeded where the time has ended.
func (c *callContext) Err() error {
	if c.Context.Err() == nil {
		return nil
	}
	return context.Cause(c.Context)
}
