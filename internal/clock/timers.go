package clock

import (
	"sync"
	"time"
)

// Timers call functions later, until they are stopped. The zero value is ready, and safe for
// concurrent use.
type Timers struct {
	mu      sync.Mutex // held for no function
	stopped bool
	waiting map[*time.Timer]struct{}
	calls   sync.WaitGroup
}

// After calls f after d, unless Stop comes first.
func (t *Timers) After(d time.Duration, f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return
	}
	if t.waiting == nil {
		t.waiting = make(map[*time.Timer]struct{})
	}
	t.calls.Add(1)
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		defer t.calls.Done()
		t.mu.Lock()
		delete(t.waiting, timer)
		t.mu.Unlock()
		f()
	})
	t.waiting[timer] = struct{}{}
}

// Stop has no function be called any more, and waits for those that are running.
func (t *Timers) Stop() {
	t.mu.Lock()
	t.stopped = true
	for timer := range t.waiting {
		if timer.Stop() {
			t.calls.Done()
		}
	}
	t.mu.Unlock()
	t.calls.Wait()
}
