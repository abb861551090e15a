package cycle

// A Waker wakes a loop that waits for it. Several calls before the loop comes back to it are one.
// Nobody waits for a nil one.
type Waker chan struct{}

// NewWaker returns a Waker that nobody has called.
func NewWaker() Waker { return make(Waker, 1) }

// Wake wakes the loop. It never waits.
func (w Waker) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// IsCalled reports whether Wake was called since it was last asked.
func (w Waker) IsCalled() bool {
	select {
	case <-w:
		return true
	default:
		return false
	}
}
