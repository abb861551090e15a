package ratelimit

import (
	"sync"
	"sync/atomic"
	"time"
)

var started = time.Now()

// origin is the wall clock at that moment, and what the machine has been suspended since then, in nanoseconds.
var origin atomic.Int64

func init() { origin.Store(started.UnixNano()) }

// clock is the time in nanoseconds since the Unix epoch: the wall clock at the start of the process, carried on by the monotonic one. So it
// doesn't step when the wall clock is set. A suspend is no step: that time has passed, and what was counted before it has aged.
func clock() int64 { return origin.Load() + int64(time.Since(started)) }

// A sleepWatch finds out that the machine was suspended: the monotonic clock that Go goes by has stood still meanwhile.
type sleepWatch struct {
	// suspended is how long the machine has been so since it was booted. false means that this system doesn't tell.
	suspended func() (time.Duration, bool)

	mu   sync.Mutex
	base time.Duration
	has  bool
}

var sleeps = &sleepWatch{suspended: suspended}

// sleepNoise is what two readings of the two clocks may differ by without a suspend.
const sleepNoise = 10 * time.Millisecond

// look adds to total what the machine has slept since the last look.
func (w *sleepWatch) look(total *atomic.Int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, ok := w.suspended()
	switch {
	case !ok:
	case !w.has:
		w.base, w.has = now, true
	case now-w.base >= sleepNoise:
		total.Add(int64(now - w.base))
		w.base = now
	}
}
