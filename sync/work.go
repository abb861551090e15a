package ratesync

import (
	"sync"
	"sync/atomic"
	"time"
)

// Work is goroutines that their owner waits for when it ends. The zero Work has not ended. It is
// safe for concurrent use.
type Work struct {
	mu      sync.Mutex // nothing begins while the end does
	ended   atomic.Bool
	running sync.WaitGroup
}

// HasEnded reports whether End was called.
func (w *Work) HasEnded() bool { return w.ended.Load() }

// Go calls f in a goroutine of its own. After End it returns false, and f is not called.
func (w *Work) Go(f func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended.Load() {
		return false
	}
	w.running.Go(f)
	return true
}

// Do calls f in the caller's goroutine. After End it returns false, and f is not called.
func (w *Work) Do(f func()) bool {
	w.mu.Lock()
	if w.ended.Load() {
		w.mu.Unlock()
		return false
	}
	w.running.Add(1)
	w.mu.Unlock()
	defer w.running.Done()
	f()
	return true
}

// End has nothing more begin, and waits for what runs, until a deadline.
func (w *Work) End(deadline time.Time) {
	w.mu.Lock()
	w.ended.Store(true)
	w.mu.Unlock()
	over := make(chan struct{})
	go func() {
		defer close(over)
		w.running.Wait()
	}()
	select {
	case <-over:
	case <-time.After(time.Until(deadline)):
	}
}
