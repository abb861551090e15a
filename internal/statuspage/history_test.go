package statuspage

import (
	"slices"
	"strings"
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

// How long ago something was reads in words, in the largest unit that there are two of.
func TestAgo(t *testing.T) {
	for seconds, want := range map[float64]string{
		-1: "0 seconds ago", 1.4: "1 second ago", 119: "119 seconds ago", 595: "9 minutes ago", 7100: "118 minutes ago", 7500: "2 hours ago", 4e5: "4 days ago",
	} {
		if got := agoText(seconds); got != want {
			t.Errorf("%g seconds are %q, want %q", seconds, got, want)
		}
	}
}

// A curve is as wide as the picture, however little is known, and a line where there is one step.
func TestCurvesAreStretched(t *testing.T) {
	step := Rates{Admitted: 2, Denied: 1}
	for steps, want := range map[int][]string{
		1: {"M0 2.0L300 2.0", "peaks in 5 seconds: 2.0 admitted/s, 1.0 denied/s"}, 2: {"M0 2.0L300 2.0", "peaks in 10 seconds: "}, 60: {"M0 2.0L5 2.0", "L300 2.0", "peaks: "},
	} {
		s := sparkOf(slices.Repeat([]Rates{step}, steps))
		for _, want := range want {
			if !strings.Contains(s.Admitted+"\n"+s.Text, want) {
				t.Errorf("%d steps are %+v, want %s", steps, s, want)
			}
		}
	}
	if s := sparkOf(nil); s != nil {
		t.Errorf("nothing is drawn as %+v", s)
	}
}

// A region that is lost has its reason, and whether limits are divided.
func TestARegionThatIsLost(t *testing.T) {
	for share, want := range map[int64]string{0: "and no limit is divided.", 5: "and limits are divided, as the zones below say."} {
		v := View{Regions: []ratesync.RegionStatus{{Region: "us", Reason: "connection refused."}}}
		v.findProblems(operate.State{Zones: []operate.LimitState{{Zone: "api", Share: share}}})
		if want := []string{"Region us is lost: connection refused. Its last counts stay, " + want}; !slices.Equal(v.Problems, want) {
			t.Errorf("%q, want %q", v.Problems, want)
		}
	}
}

// All zones together are one row where there are several, also of those that are not shown.
func TestTotals(t *testing.T) {
	v := View{Zones: []Zone{{Name: "a", Now: &Rates{Admitted: 2, Denied: 1}, Banned: new(int64(2))}, {Name: "b", Now: &Rates{Admitted: 3, WouldDeny: 4}}, {Name: "c", Banned: new(int64(1))}}}
	v.choose("a")
	if got := v.Total; got == nil || *got.Now != (Rates{Admitted: 5, Denied: 1, WouldDeny: 4}) || *got.Banned != 3 || *v.Zones[0].Banned != 2 {
		t.Errorf("together %+v of %+v", got, v.Zones)
	}
	one := View{Zones: v.Zones[:1]}
	if one.choose(""); one.Total != nil {
		t.Errorf("one zone has the total %+v", one.Total)
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
