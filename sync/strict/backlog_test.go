package strict

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A request waits for its call no longer than strict_timeout, and then has to be decided without
// Redis. That opens no circuit, and is told once until it is over, as soon as Redis answers.
func TestNobodyWaitsForACallLongerThanTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 100 * time.Millisecond
		core, logs := observer.New(zap.InfoLevel)
		s := New(nil, "test", timeout, zap.New(core))
		c := &s.circuits[0]
		overdue := func() {
			t.Helper()
			free := c.semaphore.free
			c.semaphore.free = 0 // as many calls are under way as there may be
			start := time.Now()
			_, err := s.Ask(t.Context(), "z", &Request{Raw: []byte("k"), N: 1}, nil)
			if took := time.Since(start); !errors.Is(err, ErrBacklog) || took != timeout {
				t.Errorf("Ask() = %v after %s, want ErrBacklog after %s", err, took, timeout)
			}
			for range free {
				c.semaphore.leave()
			}
			synctest.Wait()
			if c.semaphore.free != free {
				t.Errorf("%d free places are left, want %d", c.semaphore.free, free)
			}
		}
		told := func(want int, when string) {
			t.Helper()
			s.noteBacklog(c, answered)
			if n := logs.Len(); n != want {
				t.Errorf("%s: %d lines are logged, want %d", when, n, want)
			}
		}
		told(0, "before")
		overdue()
		s.noteBacklog(c, unanswered)
		told(0, "where Redis doesn't answer, that is what is told")
		overdue()
		told(1, "a backlog")
		overdue()
		told(1, "the same backlog")
		time.Sleep(2 * backlogQuiet)
		overdue()
		told(2, "another backlog")
		if st := s.Status(); st.Trips > 0 || st.Open > 0 || st.Timeouts != 4 {
			t.Errorf("%+v, want no trip and 4 timeouts", st)
		}
	})
}
