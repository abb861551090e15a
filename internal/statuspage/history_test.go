package statuspage

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/internal/metrics"
)

// Rates are what was counted between two samples, the current one over the last three steps.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now := metrics.Counts{}
		h := history{counts: func() (map[string]metrics.Counts, error) {
			mu.Lock()
			defer mu.Unlock()
			return map[string]metrics.Counts{"api": now}, nil
		}}
		set := func(c metrics.Counts) {
			mu.Lock()
			defer mu.Unlock()
			now = c
		}
		h.open()
		h.open() // the next configuration comes before the old one goes
		h.close()
		synctest.Wait()
		if r, steps := h.of("api"); r != nil || steps != nil {
			t.Errorf("one sample has the rates %v, %v", r, steps)
		}
		for i := range 100 {
			set(metrics.Counts{Admitted: now.Admitted + 10, Denied: now.Denied + float64(i)})
			time.Sleep(step)
			synctest.Wait()
		}
		r, steps := h.of("api")
		if want := (Rates{Admitted: 2, Denied: 98.0 / 5}); r == nil || *r != want {
			t.Errorf("now %+v, want %+v", r, want)
		}
		if len(steps) != kept || steps[0].Denied != 40.0/5 || steps[kept-1].Denied != 99.0/5 {
			t.Errorf("%d steps from %+v", len(steps), steps[0])
		}
		if r, _ := h.of("other"); r != nil {
			t.Errorf("a zone that is not there has %+v", r)
		}
		set(metrics.Counts{Admitted: 1}) // all handlers have released the zone's counters
		time.Sleep(step)
		synctest.Wait()
		if r, _ := h.of("api"); r != nil {
			t.Errorf("counters that began again have the rates %+v", r)
		}
		h.close()
	})
}

func TestCloseWaitsForTheLastSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		h := history{counts: func() (map[string]metrics.Counts, error) {
			time.Sleep(time.Second)
			ended = true
			return nil, nil
		}}
		h.open()
		synctest.Wait()
		if h.close(); !ended {
			t.Error("a sample is still taken after close")
		}
	})
}
