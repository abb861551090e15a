package redistest

import (
	"testing"
	"time"
)

// Patience is how long tests wait for an event. A machine that stalls makes a test slow, and not
// red.
const Patience = 5 * time.Minute

// Eventually returns when a condition is true, and fails the test if it never is.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if !Poll(Patience, condition) {
		t.Fatalf("waited %s, but not until %s", Patience, what)
	}
}

// Poll asks for a condition until it is true, or until a time has passed, and reports whether it
// became true. It is for what another process or goroutine does that has no other way to tell.
// Where there is virtual time, in testing/synctest, a test waits for the event itself.
func Poll(limit time.Duration, condition func() bool) bool {
	for deadline := time.Now().Add(limit); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// Pause is the time between two steps of a load. It makes steps meet in more than one order, and
// what a test asserts must hold however long it is.
func Pause(d time.Duration) { time.Sleep(d) }
