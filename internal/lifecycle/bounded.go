package lifecycle

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// patience is how long a call to a place may take. It is more than what a storage has to answer,
// whose error says more.
const patience = storageTimeout + time.Second

// errHangs is the error for a place that doesn't answer.
var errHangs = errors.New("the disk or the storage does not answer")

// A bounded place is one that may hang, like a file on a network file system or Caddy's storage:
// nobody waits for it longer than patience, and while a call hangs nobody waits at all.
type bounded struct {
	place
	*turns
}

// turns lets one call at a time to a place, also while that hangs: a write that nobody waits for
// any more must not replace what was written after it.
type turns struct {
	taken chan struct{} // holds an element while a call is under way
	hangs atomic.Bool   // it has taken too long
}

// allTurns are those of the process, by the name of the place. Configurations share them.
var allTurns sync.Map

func bound(p place, name string) bounded {
	t, _ := allTurns.LoadOrStore(name, &turns{taken: make(chan struct{}, 1)})
	return bounded{p, t.(*turns)}
}

// within calls f in a goroutine of its own, which may outlive the call.
func within[T any](t *turns, f func() (T, error)) (v T, err error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case t.taken <- struct{}{}:
	default:
		if t.hangs.Load() {
			return v, errHangs
		}
		select {
		case t.taken <- struct{}{}:
		case <-timer.C:
			return v, errHangs
		}
	}
	type result struct {
		v   T
		err error
	}
	results := make(chan result, 1)
	go func() {
		t.hangs.Store(false)
		v, err := f()
		<-t.taken
		results <- result{v, err}
	}()
	select {
	case r := <-results:
		return r.v, r.err
	case <-timer.C:
		t.hangs.Store(true)
		return v, errHangs
	}
}

func (b bounded) read() ([]byte, error) { return within(b.turns, b.place.read) }

func (b bounded) write(to []byte) error {
	_, err := within(b.turns, func() (struct{}, error) { return struct{}{}, b.place.write(to) })
	return err
}

func (b bounded) Check() error {
	_, err := within(b.turns, func() (struct{}, error) { return struct{}{}, b.place.Check() })
	return err
}

func (b bounded) Clean(longest time.Duration) {
	_, _ = within(b.turns, func() (struct{}, error) {
		b.place.Clean(longest)
		return struct{}{}, nil
	})
}
