package strict

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A request that finds a full next call is denied by the last denial, for as long as nobody who
// waits would be admitted, and by no denial under other limits.
func TestAFullCallDeniesByTheLastDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := Rule{Kind: algorithms.SlidingLog, Limit: 10, Window: time.Minute}
		wider := log
		wider.Limit++
		s := New(nil, "test", time.Second)
		rs, err := s.ruleset("z", []Rule{log})
		if err != nil {
			t.Fatal(err)
		}
		q := &queue{running: true, waiters: make([]*waiter, maxWanted)}
		rs.queues[id(1)] = q
		last := &outcome{granted: 3, denied: []int64{1}, at: replied, seq: 7, remaining: []int64{0}, states: [][]int64{{10, replied, replied}}}
		q.denied = &denial{outcome: last, cost: 2, rules: []Rule{log}, came: clock.Now(), wait: 3 * time.Second}
		for _, c := range []struct {
			after  time.Duration
			rule   Rule
			cost   int64
			denied bool
		}{
			{0, log, 2, true}, {0, log, 3, true}, {0, log, 1, false}, {0, log, 0, false}, {0, wider, 2, false},
			{2 * time.Second, log, 2, true}, {time.Second, log, 2, false},
		} {
			time.Sleep(c.after)
			w := &waiter{done: make(chan struct{}), rules: []Rule{c.rule}, cost: c.cost}
			before, passed := len(q.waiters), time.Duration(clock.Now()-q.denied.came)
			if !s.join(rs, id(1), w) {
				t.Fatal("there will be no call")
			}
			if waits := len(q.waiters) > before; waits == c.denied {
				t.Errorf("%v after a denial for 3s, limit %d, cost %d: the request waits: %t", passed, c.rule.Limit, c.cost, waits)
			}
			if !c.denied {
				continue
			}
			<-w.done
			if o := w.outcome; o.granted != 0 || o.seq != 0 || o.at != replied+passed.Microseconds() || w.place.admitted || w.place.cost != c.cost {
				t.Errorf("%v after a denial: %+v at %+v, want the same without a grant, as of now", passed, *o, w.place)
			}
		}
		if last.granted != 3 || last.at != replied {
			t.Errorf("the denial itself was changed: %+v", *last)
		}
	})
}

// Who comes while more wait than one call of a log takes is denied by the last answer, unless that
// call has admitted others behind it.
func TestAFullLogTellsNothingOlderThanAnAdmission(t *testing.T) {
	remember(t, func(t *testing.T, n *remembering) {
		low, high, none := perWindow(algorithms.SlidingLog, 3, time.Hour), perWindow(algorithms.SlidingLog, 4, time.Hour), perWindow(algorithms.SlidingLog, 0, time.Hour)
		var all sync.WaitGroup
		take := func(rule Rule, cost int64, then func(algorithms.Decision)) {
			all.Go(func() {
				said, _, err := n.Take(t.Context(), memorized, []Rule{rule}, id(1), cost, nil)
				if err != nil {
					t.Error(err)
				} else if then != nil {
					then(said[0].Decision)
				}
			})
			synctest.Wait()
		}
		ignore := func(algorithms.Decision) {}
		take(high, 1, ignore)
		n.delay.Store(int64(50 * time.Millisecond))
		take(high, 1, ignore)             // a call that the next requests wait for
		take(low, 2, ignore)              // denied with one left
		take(high, 1, ignore)             // admitted: nothing is left then
		time.Sleep(75 * time.Millisecond) // the call of both is under way
		for range 2*maxWanted + 1 {
			take(none, 1, ignore)
		}
		time.Sleep(50 * time.Millisecond) // it is answered, and the next one under way
		take(low, 2, func(d algorithms.Decision) {
			if d.Allowed || d.Remaining != 0 {
				t.Errorf("told %+v, want that nothing is left", d)
			}
		})
		all.Wait()
	})
}

// What a call may have done is sent again for half a minute, not longer: Redis may not remember it.
func TestOldCorrectionsAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{sent: &group{since: time.Now()}, rollBack: 5, rollBackSince: time.Now()}
		time.Sleep(correctionTime)
		if q.expire(); q.sent == nil || q.rollBack == 0 {
			t.Errorf("after %s: sent %v, rollBack %d, want both kept", correctionTime, q.sent, q.rollBack)
		}
		time.Sleep(time.Second)
		if q.expire(); q.sent != nil || q.rollBack != 0 {
			t.Errorf("later: sent %v, rollBack %d, want none", q.sent, q.rollBack)
		}
	})
}

// A call to a log brings no more units along than it may write, and the rest comes with the next
// ones, each unit once.
func TestCorrectionsOfALogAreCut(t *testing.T) {
	c := corrections{
		{op: refund, n: maxUnits - 10, seq: 1, unit: 1}, {op: penalty, n: 7, at: replied}, {op: refund, n: 20, seq: 2, unit: 5}, {op: refund, n: 1, seq: 3, unit: 1},
	}
	units := make(map[correction]int64) // by op, call and unit
	calls := 0
	for len(c) > 0 {
		var now corrections
		sum := int64(0)
		for now, c = cutLog(c); len(now) > 0; now = now[1:] {
			one := now[0]
			sum += one.n
			for n := range one.n {
				unit := one.unit + n
				if one.op == penalty {
					unit = 0
				}
				units[correction{op: one.op, seq: one.seq, unit: unit}]++
			}
		}
		if calls++; sum > maxUnits || sum == 0 {
			t.Fatalf("call %d brings %d units along, want 1 to %d", calls, sum, maxUnits)
		}
	}
	if calls != 2 || len(units) != maxUnits-10+20+1+1 {
		t.Errorf("%d calls with %d units, want two with %d", calls, len(units), maxUnits-10+20+1+1)
	}
	for unit, n := range units {
		if want := int64(1); n != want && unit.op == refund {
			t.Errorf("unit %+v is sent %d times", unit, n)
		}
	}
}

// Replies that are no outcome are errors, whatever is wrong with them.
func TestRepliesThatAreNoOutcome(t *testing.T) {
	state := []any{int64(9), int64(3)}
	if _, err := parseOutcomes([]any{int64(1), replied, state}, 1, []run{{2, 1}}); err != nil {
		t.Fatalf("parseOutcomes() = %v of what is one", err)
	}
	for _, reply := range []any{
		nil, "OK", int64(1), []any{}, []any{int64(1), replied}, []any{int64(1), replied, state, state},
		[]any{"1", replied, state}, []any{int64(-1), replied, state}, []any{int64(3), replied, state}, []any{int64(1), int64(-1), state},
		[]any{int64(1), int64(math.MaxInt64), state}, []any{int64(1), replied, "9 3"}, []any{int64(1), replied, []any{int64(9)}},
		[]any{int64(1), replied, []any{int64(9), "3"}}, []any{int64(1), replied, []any{int64(9), nil}}, []any{int64(1), replied, []any{int64(9), int64(math.MaxInt64)}},
	} {
		if o, err := parseOutcomes(reply, 1, []run{{2, 1}}); !errors.Is(err, ratesync.ErrReply) {
			t.Errorf("parseOutcomes(%v) = %+v, %v, want ErrReply", reply, o, err)
		}
	}
}

func TestDrainsIsBounded(t *testing.T) {
	for _, c := range []struct {
		limit, whole, rest int64
		window, want       time.Duration
	}{
		{10, -1, 5, time.Second, 0},
		{10, 3, 0, time.Second, 300 * time.Millisecond},
		{3, 1, 0, time.Second, 333334 * time.Microsecond},
		{1, 4000, 0, 30 * 24 * time.Hour, math.MaxInt64},
		{1, 1 << 40, 0, 30 * 24 * time.Hour, math.MaxInt64},
	} {
		r := Rule{Kind: algorithms.TokenBucket, Limit: c.limit, Window: c.window}
		if got := r.drains(c.whole, c.rest); got != c.want {
			t.Errorf("%d + %d/window at %d in %v drain in %v, want %v", c.whole, c.rest, c.limit, c.window, got, c.want)
		}
	}
}

// Rules that have no script in common are an error, and so is everything after Close.
//
// no clock: no Redis is asked.
func TestTakeRejectsWhatItCantAsk(t *testing.T) {
	t.Parallel()
	s := New(client(t, redistest.Start(t).URL), "test", time.Second)
	fixed := Rule{Kind: algorithms.SlidingLog, Limit: 1, Window: time.Minute}
	for name, rules := range map[string][]Rule{
		"none":          nil,
		"two kinds":     {fixed, {Kind: algorithms.TokenBucket, Limit: 1, Window: time.Minute}},
		"no window":     {{Kind: algorithms.SlidingLog, Limit: 1}},
		"an odd window": {{Kind: algorithms.SlidingLog, Limit: 1, Window: -time.Minute}},
	} {
		if _, g, err := s.Take(context.Background(), "z", rules, id(1), 1, nil); err == nil || g.Admitted() {
			t.Errorf("%s: admitted %t, %v, want an error", name, g.Admitted(), err)
		}
	}
	c := s.Charger("z", Rule{Kind: algorithms.TokenBucket, Limit: 1, Window: time.Minute})
	s.Close()
	if _, _, err := s.Take(context.Background(), "z", []Rule{fixed}, id(1), 1, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Take() = %v after Close, want ErrClosed", err)
	}
	if err := c.Unavailable(id(1)); !errors.Is(err, ErrClosed) {
		t.Errorf("Unavailable() = %v after Close, want ErrClosed", err)
	}
	if err := c.Failed(id(1), context.DeadlineExceeded); err != nil {
		t.Errorf("Failed() = %v after Close, want that the request asks by itself", err)
	}
}
