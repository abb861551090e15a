// no clock: Redis goes by the time that each test sets.

package strict

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// like is a batch of new requests.
func like(rules []Rule, runs ...run) batch {
	b := batch{rules: rules, runs: runs}
	for _, r := range runs {
		for range r.count {
			b.waiters = append(b.waiters, &waiter{done: make(chan struct{}), rules: rules, cost: r.cost})
		}
	}
	return b
}

// placesOf is where the requests of a batch are, of which nobody has left.
func placesOf(b batch, o *outcome) (all []place) {
	b = like(b.rules, b.runs...)
	b.tell(o, reset.Reset{})
	for _, w := range b.waiters {
		all = append(all, w.place)
	}
	return all
}

// pay takes n units and fails the test if Redis doesn't decide.
func pay(t testing.TB, s *Limiter, zone string, key [16]byte, n int64, rules ...Rule) (Grant, []Verdict) {
	t.Helper()
	all, g, err := s.Take(context.Background(), zone, rules, key, n, nil)
	if err != nil {
		t.Fatalf("Take(%s, %d) = %v", zone, n, err)
	}
	return g, all
}

// costly are rules of each algorithm for requests of some units each.
var costly = []Rule{
	{Kind: algorithms.TokenBucket, Limit: 30, Window: time.Minute},
	{Kind: algorithms.GCRA, Limit: 7, Window: 777777777, Burst: 30},
	{Kind: algorithms.LeakyBucket, Limit: 30, Window: time.Second, Queue: 40},
}

// Random lives of one key in Redis are those in the algorithms package, whatever requests cost:
// decisions, what remains, and each wait.
func TestCostsAreDecidedAsTheAlgorithmsDo(t *testing.T) {
	v := newVirtual(t)
	for i, rule := range costly {
		t.Run(fmt.Sprintf("%d %s", i, rule.Kind), func(t *testing.T) {
			v.t = t
			random, zone := rand.New(rand.NewPCG(uint64(i), 3)), fmt.Sprint("costly", i)
			v.use(zone, rule)
			m := modelFor(rule)
			denied := 0
			for step := range 400 {
				v.set(v.now + random.Int64N(int64(rule.Window/time.Microsecond)/6))
				n := costIn(random, rule)
				want := m.takeSome(v.now*1000, n)
				g, all := pay(t, v.Limiter, zone, id(1), n, rule)
				got := all[0].Decision
				if n == 0 {
					want.Allowed, want.Delay, want.Retry = true, 0, 0
				}
				if !same(got, want) || g.Admitted() != want.Allowed {
					t.Fatalf("step %d, cost %d:\n got %+v\nwant %+v", step, n, got, want)
				}
				if !want.Allowed {
					denied++
				} else if random.IntN(8) == 0 && n > 0 {
					m.refund(v.now*1000, n)
					v.Refund(g, nil)
					v.settled(zone)
				}
			}
			if denied < 20 || denied > 380 {
				t.Errorf("%d of 400 were denied: not all was compared", denied)
			}
		})
	}
}

// costIn is a cost that a rule may admit, 0 and 1 among them.
func costIn(random *rand.Rand, r Rule) int64 {
	return []int64{0, 1, 1, 2, 1 + random.Int64N(r.size()), 1 + random.Int64N(1+r.size()/4), r.size()}[random.IntN(7)]
}

// The requests of a call get what each would get in a call of its own, in the same order: what is
// passed over denies nobody behind it. A call that is sent twice gets the same, and what nobody
// heard of is rolled back as a whole: by what it spent.
func TestRunsAreRequestsOneAfterTheOther(t *testing.T) {
	v := newVirtual(t)
	for i, one := range costly {
		for limits := range 2 {
			t.Run(fmt.Sprintf("%d %s %d", i, one.Kind, limits), func(t *testing.T) {
				v.t = t
				random := rand.New(rand.NewPCG(uint64(i), uint64(limits)))
				rules := []Rule{one, one}[:1+limits]
				for i := range rules {
					rules[i].Window *= time.Duration(1 + 3*i)
				}
				m := mixedCalls{virtual: v, zones: [2]string{fmt.Sprint("c", i, limits), fmt.Sprint("d", i, limits)}}
				for _, zone := range m.zones {
					v.use(zone, rules...)
				}
				for range 80 {
					v.set(v.now + random.Int64N(int64(one.Window/time.Microsecond)))
					var runs []run
					for range 1 + random.IntN(6) {
						runs = append(runs, run{1 + random.Int64N(3), costIn(random, one)})
					}
					runs = slices.CompactFunc(runs, func(a, b run) bool { return a.cost == b.cost })
					m.oneByOne(like(rules, runs...), random.IntN(4))
				}
				if m.granted == 0 || m.denied == 0 {
					t.Errorf("%d granted, %d denied: not all was compared", m.granted, m.denied)
				}
			})
		}
	}
}

// oneByOne has one zone decide a batch in one call, and the other one each request in its own.
func (m *mixedCalls) oneByOne(b batch, then int) {
	m.t.Helper()
	if then == 0 { // a call that nobody hears of
		seq, _ := m.ask(m.zones[0], 0, false, b)
		m.ask(m.zones[0], seq, false)
	}
	_, together := m.ask(m.zones[0], 0, then == 1, b)
	for n, at := range placesOf(b, together[0]) {
		w := b.waiters[n]
		single := like(b.rules, run{1, w.cost})
		_, alone := m.ask(m.zones[1], 0, false, single)
		want := placesOf(single, alone[0])[0]
		got, wanted := verdicts(b.rules, together[0], at, nil), verdicts(b.rules, alone[0], want, nil)
		if at.admitted != want.admitted {
			m.t.Fatalf("request %d of %+v, cost %d: admitted %t, and alone %t", n, b.runs, w.cost, at.admitted, want.admitted)
		}
		for i := range got {
			if g, w := got[i].Decision.Result, wanted[i].Decision.Result; g != w && at.admitted {
				m.t.Fatalf("request %d of %+v, rule %d:\n got %+v\nwant %+v", n, b.runs, i, g, w)
			}
		}
		if at.admitted {
			m.granted++
		} else {
			m.denied++
		}
	}
	// What is left is the same, and so is what the next one hears.
	_, left := m.ask(m.zones[0], 0, false)
	_, leftAlone := m.ask(m.zones[1], 0, false)
	if !reflect.DeepEqual(left[0].states, leftAlone[0].states) || !slices.Equal(left[0].remaining, leftAlone[0].remaining) {
		m.t.Fatalf("after %+v:\n got %+v %v\nwant %+v %v", b.runs, left[0].states, left[0].remaining, leftAlone[0].states, leftAlone[0].remaining)
	}
}
