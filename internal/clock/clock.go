// Package clock has the time by which this process counts. It goes on while the machine sleeps, and
// does not step when the wall clock is set.
package clock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

var started = time.Now()

// origin is the wall clock at that moment in nanoseconds since the Unix epoch, and what the machine
// has been suspended since then.
var origin atomic.Int64

func init() { origin.Store(started.UnixNano()) }

// Now returns nanoseconds since the Unix epoch: the wall clock at the start of the process, carried
// on by the monotonic one. A suspend is no step: that time has passed, and what was counted before
// it has aged.
func Now() int64 { return origin.Load() + int64(time.Since(started)) }

// Advance moves the clock on by a time that the monotonic clock has not seen.
func Advance(by time.Duration) { origin.Add(int64(by)) }

// CatchUp moves the clock on by what the machine was suspended since the last call. It is to be
// called every second or so.
func CatchUp() { Advance(suspends.since()) }

var suspends = &suspendWatch{total: suspended}

// A suspendWatch finds out that the machine was suspended: the monotonic clock that Go goes by has
// stood still meanwhile.
type suspendWatch struct {
	// total returns how long the machine has been suspended since it was booted. false means that
	// this system doesn't tell.
	total func() (time.Duration, bool)

	mu    sync.Mutex
	known bool
	last  time.Duration
}

// suspendNoise is what two readings of the two clocks may differ by without a suspend.
const suspendNoise = 10 * time.Millisecond

// since returns how long the machine was suspended since the last call, 0 at the first one.
func (w *suspendWatch) since() (slept time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, ok := w.total()
	switch {
	case !ok:
	case !w.known:
		w.known, w.last = true, now
	case now-w.last >= suspendNoise:
		slept, w.last = now-w.last, now
	}
	return slept
}

// Sleep waits for d. It returns false if the context ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
