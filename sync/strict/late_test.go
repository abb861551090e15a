package strict

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A call whose reply is lost, or comes late, is no loss of Redis where a probe is answered: its
// requests ask again, and count once.
func TestLateCallDoesNotOpenTheCircuit(t *testing.T) {
	for name, rule := range kinds {
		t.Run(name, func(t *testing.T) {
			onALine(t, 300*time.Millisecond, func(t *testing.T, l *line, s *Limiter) {
				take(t, s, name, id(1), rule)
				before := s.Status()
				l.set(faultproxy.DropReplies)
				go func() {
					redistest.Poll(time.Minute, func() bool { _, dropped := l.counts(); return dropped > 0 })
					l.set(faultproxy.None)
				}()
				g, _ := take(t, s, name, id(1), rule)
				if st := s.Status(); !g.Admitted() || st.Trips > before.Trips || st.Timeouts > before.Timeouts {
					t.Errorf("admitted %v after a reply that was lost, and %+v, want no trip", g.Admitted(), st)
				}
				if got := drain(t, l.other(t), name, id(1), rule); got != 98 {
					t.Errorf("%d admitted after two, want 98", got)
				}
			})
		})
	}
}

// What is left open by a lost reply is settled though Redis refuses the key meanwhile: one limit's
// key is another program's for a while.
func TestRefusedKeyKeepsWhatIsLeftOpen(t *testing.T) {
	onALine(t, 100*time.Millisecond, func(t *testing.T, l *line, s *Limiter) {
		rules := []Rule{{Kind: algorithms.TokenBucket, Limit: 100, Window: long}, {Kind: algorithms.TokenBucket, Limit: 100, Window: 2 * long}}
		take(t, s, "z", id(1), rules...)
		other := l.other(t)
		before := held(t, other, "z", id(1), rules[0])
		l.set(faultproxy.DropReplies)
		if _, _, err := s.Take(context.Background(), "z", rules, id(1), 1, nil); err == nil {
			t.Fatal("Take() = nil without a reply")
		}
		if got := held(t, other, "z", id(1), rules[0]); got != before+1 {
			t.Fatalf("Redis holds %d, want one more than %d", got, before)
		}
		foreign := ""
		for _, key := range l.server.Keys() {
			if strings.Contains(key, rules[1].spec("z").Name()+":") {
				foreign = key
			}
		}
		l.server.Del(foreign)
		if _, err := l.server.Push(foreign, "not", "ours"); err != nil {
			t.Fatal(err)
		}
		l.set(faultproxy.None)
		time.Sleep(5 * time.Second) // virtual time
		if s.Down() || s.suspended.Load() == 0 {
			t.Fatalf("down %t, and %d keys are left open while Redis refuses one, want it up and 1", s.Down(), s.suspended.Load())
		}
		l.server.Del(foreign)
		settles(t, s)
		if got := held(t, other, "z", id(1), rules[0]); got != before {
			t.Errorf("Redis holds %d, want %d: nobody got the unit", got, before)
		}
	})
}

// Limits that differ from call to call make one ruleset, and those of former configurations are
// forgotten.
func TestRulesetsGoByNames(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	for limit := range int64(50) {
		take(t, s, "z", id(1), Rule{Kind: algorithms.TokenBucket, Limit: 1000 + limit, Window: long, Burst: 500 + limit})
	}
	if n := len(s.zones["z"]); n != 1 {
		t.Errorf("50 limits made %d rulesets, want 1", n)
	}
	if got := held(t, s, "z", id(1), Rule{Kind: algorithms.TokenBucket, Limit: 1, Window: long, Burst: 100}); got != 50 {
		t.Errorf("%d are held after 50 with different limits, want 50", got)
	}
	for i := range 50 {
		take(t, s, fmt.Sprint("z", i), id(1), tenAnHour)
	}
	redistest.Eventually(t, "nothing is under way", func() bool {
		for _, all := range s.zones {
			if !all[0].isIdle() {
				return false
			}
		}
		return true
	})
	s.mu.Lock()
	for _, all := range s.zones {
		all[0].used = all[0].used.Add(-2 * rulesetTime)
	}
	s.mu.Unlock()
	take(t, s, "last", id(1), tenAnHour)
	if n := len(s.zones); n != 1 {
		t.Errorf("%d zones are remembered, want the one that is asked for", n)
	}
}

// What has passed drains at the limit of the request that was decided last: a request with a
// thousand times the limit doesn't empty a bucket.
//
// no clock: Redis goes by the time that the test sets.
func TestBucketDrainsAtTheLimitOfTheLastRequest(t *testing.T) {
	v := newVirtual(t)
	low, high := Rule{Kind: algorithms.TokenBucket, Limit: 60, Window: time.Minute}, Rule{Kind: algorithms.TokenBucket, Limit: 60000, Window: time.Minute}
	v.use("z", low)
	admitted := drain(t, v.Limiter, "z", id(1), low)
	for range 10 {
		v.set(v.now + 1_000_000)
		take(t, v.Limiter, "z", id(1), high)
		admitted += drain(t, v.Limiter, "z", id(1), low)
	}
	if admitted > 70 {
		t.Errorf("%d admitted in 10 s at 60/1m beside one each second at 60000/1m, want 70 at most", admitted)
	}
}
