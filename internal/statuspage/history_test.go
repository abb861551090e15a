package statuspage

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/operate"
	ratesync "github.com/caddy-tide/ratelimit/sync"
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

// How long ago something was reads as in the commands.
func TestAgo(t *testing.T) {
	for seconds, want := range map[float64]string{-1: "0s ago", 1.4: "1s ago", 595: "9m55s ago", 7500: "2h5m ago"} {
		if got := agoText(seconds); got != want {
			t.Errorf("%g seconds are %q, want %q", seconds, got, want)
		}
	}
}

// For some seconds after Redis is back a strict zone is reported as failing, while nodes share
// their counts again.
func TestThePageWhenRedisIsBack(t *testing.T) {
	for failing, lost := range map[string]bool{"login sync_rate strict": false, "heartbeat": true, "shards": true} {
		var v View
		v.findProblems(operate.State{Redis: &ratesync.Status{Failing: map[string]string{failing: "connection refused", "login sync_rate strict": "connection refused"}}})
		want := "Redis answered the last heartbeat, and failed a moment ago for login sync_rate strict: connection refused."
		if lost {
			want = "Redis fails: connection refused. Until it answers, each zone goes by its on_redis_loss."
		}
		if v.Lost != lost || !slices.Equal(v.Problems, []string{want}) {
			t.Errorf("%s fails: lost %t, %q, want %t, %s", failing, v.Lost, v.Problems, lost, want)
		}
	}
}
