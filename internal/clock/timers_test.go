package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestStopWaitsForWhatRunsAndEndsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var timers Timers
		var called, ended, late bool
		timers.After(time.Second, func() { called = true })
		timers.After(2*time.Second, func() {
			time.Sleep(time.Second)
			timers.After(0, func() { late = true }) // as what asks again and again does
			ended = true
		})
		timers.After(time.Minute, func() { late = true })
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if !called || ended {
			t.Fatalf("after 1.5s: called %t, ended %t", called, ended)
		}
		time.Sleep(time.Second) // the second one runs
		if timers.Stop(); !ended {
			t.Error("Stop has not waited for a function that runs")
		}
		timers.After(time.Second, func() { late = true })
		time.Sleep(time.Hour)
		synctest.Wait()
		if late {
			t.Error("a function was called after Stop")
		}
	})
}
