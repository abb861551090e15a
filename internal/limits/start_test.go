package limits

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Requests that come before the start wait until it is over, and no longer than StartWait after the
// first of them.
func TestRequestsWaitForTheStart(t *testing.T) {
	for name, c := range map[string]struct{ ends, first, second time.Duration }{
		"it comes":        {300 * time.Millisecond, 300 * time.Millisecond, 200 * time.Millisecond},
		"it never comes":  {time.Hour, StartWait, StartWait - 100*time.Millisecond},
		"it is over then": {50 * time.Millisecond, 50 * time.Millisecond, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := NewStartUp()
			time.AfterFunc(c.ends, s.End)
			ask := func(want time.Duration) {
				began := time.Now()
				if !s.IsOver() {
					s.Await(context.Background(), began.UnixNano())
				}
				if took := time.Since(began); took != want {
					t.Errorf("%s: a request waits %v, want %v", name, took, want)
				}
			}
			var wg sync.WaitGroup
			wg.Go(func() { ask(c.first) })
			wg.Go(func() {
				time.Sleep(100 * time.Millisecond)
				ask(c.second)
			})
			wg.Wait()
			if !s.IsOver() {
				t.Errorf("%s: it is not over for the next request", name)
			}
			gone, cancel := context.WithCancel(context.Background())
			cancel()
			NewStartUp().Await(gone, time.Now().UnixNano())
		})
	}
}
