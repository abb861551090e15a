package strict

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// countedRules are those of a zone that counts denied requests.
//
// no clock: Redis goes by the time that each test sets.
func countedRules() []Rule {
	return append([]Rule{
		{Kind: algorithms.TokenBucket, Limit: 5, Window: 30 * time.Second},
		{Kind: algorithms.GCRA, Limit: 10, Window: time.Minute, Burst: 1},
	}, chargedRules...)
}

// Where denied requests count, a denial tells how the limit stands with the request that it denies,
// as the algorithms do.
func TestADenialTellsHowTheLimitStandsWithIt(t *testing.T) {
	v := newVirtual(t)
	for i, rule := range countedRules() {
		t.Run(fmt.Sprintf("%d %s %d in %s", i, rule.Kind, rule.Limit, rule.Window), func(t *testing.T) {
			v.t = t
			rule.CountsDenied = true
			random, zone, m := rand.New(rand.NewPCG(uint64(i), 3)), fmt.Sprint("d", i), modelFor(rule)
			v.use(zone, rule)
			pace, denied := int64(rule.Window/time.Microsecond)/rule.Limit, 0
			for step := range 300 {
				v.set(v.now + random.Int64N(pace))
				if random.IntN(20) == 0 {
					v.set(v.now + random.Int64N(3*pace*rule.Limit))
				}
				want := m.take(v.now * 1000)
				if !want.Allowed {
					denied++
					m.charge(v.now * 1000)
					want.Waits = m.waits(v.now * 1000)
				}
				g, all := take(t, v.Limiter, zone, id(1), rule)
				if got := all[0].Decision; !same(got, want) || g.Admitted() != want.Allowed {
					t.Fatalf("step %d:\n got %+v\nwant %+v", step, got, want)
				}
			}
			if denied == 0 {
				t.Error("nothing was denied")
			}
		})
	}
}

func (m *modelOf[S]) waits(now int64) algorithms.Waits {
	return m.Waits(&m.state, m.limit, now, 1, 0, allWaits|algorithms.WantRetry)
}

// A client that spends its limits, comes once too early, and then waits as long as it is told, is
// admitted each time: with one limit and with two, of which one may only be filled by the denial.
func TestAClientThatWaitsAsToldIsAdmitted(t *testing.T) {
	v := newVirtual(t)
	for i, rule := range countedRules() {
		rule.CountsDenied = true
		longer := rule
		longer.Window, longer.Limit, longer.Burst, longer.Queue = 7*rule.Window, rule.Limit+1, rule.Burst+1, rule.Queue+1
		for name, rules := range map[string][]Rule{"one": {rule}, "two": {rule, longer}} {
			zone := fmt.Sprint("w", i, name)
			v.use(zone, rules...)
			v.set(v.now + 1)
			for range 30 {
				for range 50 { // spends what there is
					if _, wait := tellsWait(t, v, zone, rules); wait > 0 {
						break
					}
				}
				g, wait := tellsWait(t, v, zone, rules)
				if g.Admitted() {
					t.Fatalf("%+v: admitted at the instant of a denial", rules)
				}
				v.set(v.now + int64((wait+time.Microsecond-1)/time.Microsecond))
				if g, more := tellsWait(t, v, zone, rules); !g.Admitted() {
					t.Fatalf("%+v: denied after the %s that it was told to wait, and told %s more", rules, wait, more)
				}
			}
		}
	}
}

// tellsWait takes, and returns what a denied client is told to wait.
func tellsWait(t *testing.T, v *virtual, zone string, rules []Rule) (g Grant, wait time.Duration) {
	t.Helper()
	g, all := take(t, v.Limiter, zone, id(1), rules...)
	for _, said := range all {
		if !said.Decision.Allowed {
			wait = max(wait, said.Decision.Retry)
		}
	}
	return g, wait
}

// chargedOnce is a log of 3 in which denied requests count.
var chargedOnce = Rule{Kind: algorithms.TokenBucket, Limit: 3, Window: long, CountsDenied: true}

// settles waits until a limiter has nothing more to send.
func settles(t *testing.T, s *Limiter) {
	t.Helper()
	redistest.Eventually(t, "nothing is under way", func() bool { return s.isIdle() && s.suspended.Load() == 0 && !s.Down() })
}

// spentOf is what Redis holds of the test's key, also beyond the limit.
func spentOf(t *testing.T, s *Limiter) int64 {
	t.Helper()
	wide := chargedOnce
	wide.Limit = 1000
	return held(t, s, t.Name(), id(1), wide)
}

// A denial that nobody heard of charges nothing.
func TestADenialWithoutAReplyIsNotCharged(t *testing.T) {
	onALine(t, 100*time.Millisecond, func(t *testing.T, l *line, s *Limiter) {
		take(t, s, t.Name(), id(1), chargedOnce)
		other := l.other(t)
		drain(t, other, t.Name(), id(1), chargedOnce)
		settles(t, s)
		settles(t, other) // its last request was denied, and is charged
		before := spentOf(t, other)
		l.set(faultproxy.DropReplies)
		if _, _, err := s.Take(context.Background(), t.Name(), []Rule{chargedOnce}, id(1), 1, nil); err == nil {
			t.Fatal("Take() = nil without a reply, want an error")
		}
		l.set(faultproxy.None)
		settles(t, s)
		if got := spentOf(t, other); got != before {
			t.Errorf("%d spent after a denial that nobody heard of, want %d", got, before)
		}
	})
}

// Requests that left before their denial came are not charged.
func TestWhoLeftIsNotCharged(t *testing.T) {
	onALine(t, 10*time.Second, func(t *testing.T, l *line, s *Limiter) {
		drain(t, s, t.Name(), id(1), chargedOnce)
		settles(t, s)
		before := spentOf(t, l.other(t))
		l.setTrip(time.Second)
		ctx, cancel := context.WithCancel(context.Background())
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if _, _, err := s.Take(ctx, t.Name(), []Rule{chargedOnce}, id(1), 1, nil); !errors.Is(err, context.Canceled) {
					t.Errorf("Take() = %v, want that its context was canceled", err)
				}
			})
		}
		synctest.Wait() // the call is on its way
		cancel()
		all.Wait()
		l.setTrip(0)
		settles(t, s)
		if got := spentOf(t, l.other(t)); got != before {
			t.Errorf("%d spent after requests that left, want %d", got, before)
		}
	})
}
