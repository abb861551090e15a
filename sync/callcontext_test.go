package ratesync

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Each answer may take the timeout, all of them together may take longer, and none may take longer
// than the parent lasts.
func TestEachAnswerHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, end := context.WithTimeout(t.Context(), 10*time.Second)
		defer end()
		began := time.Now()
		ctx, cancel := CallContext(parent, 4*time.Second)
		defer cancel()
		for answer, want := range []time.Duration{4, 7, 10, 10} {
			if deadline, ok := ctx.Deadline(); !ok || deadline.Sub(began) != want*time.Second {
				t.Errorf("answer %d has until %v, want %d s", answer, deadline.Sub(began), want)
			}
			if err := ctx.Err(); err != nil {
				t.Errorf("answer %d: %v", answer, err)
			}
			time.Sleep(3 * time.Second)
		}
		if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after the parent's end: %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

// A call that asks for no more answers ends after the time of one, and says so.
func TestACallWithoutAnswersEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := CallContext(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		<-ctx.Done()
		if took := time.Since(began); took != time.Second || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("ended after %v with %v, want 1s with %v", took, ctx.Err(), context.DeadlineExceeded)
		}
	})
}
