package limits

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// StartWait is how long a process waits at its start for the first answer of a Redis, and a request
// for that start.
const StartWait = time.Second

// Starting is the start of this process. Caddy starts apps in any order, and a request that is
// served before the sync has begun, or before what was saved is restored, would have a spent key's
// whole limit again.
var Starting = NewStartUp()

// A StartUp is the time before the first configuration runs. It is over at the latest StartWait
// after the first request has come. It is safe for concurrent use.
type StartUp struct {
	over  atomic.Bool
	ended chan struct{}
	once  sync.Once
	first atomic.Int64 // when the first request has come
}

// NewStartUp returns a StartUp that is not over.
func NewStartUp() *StartUp { return &StartUp{ended: make(chan struct{})} }

// IsOver reports whether nobody has to wait.
func (s *StartUp) IsOver() bool { return s.over.Load() }

// End ends it.
func (s *StartUp) End() {
	s.once.Do(func() {
		s.over.Store(true)
		close(s.ended)
	})
}

// Await has a request that has come at now wait until it is over.
func (s *StartUp) Await(ctx context.Context, now int64) {
	s.first.CompareAndSwap(0, now)
	wait := time.NewTimer(StartWait - time.Duration(now-s.first.Load()))
	defer wait.Stop()
	select {
	case <-s.ended:
	case <-ctx.Done():
	case <-wait.C:
		s.End()
	}
}
