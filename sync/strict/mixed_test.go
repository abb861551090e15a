package strict

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// goBy has a model decide the next requests by another limit.
func goBy(m model, r Rule) {
	l := r.compile()
	switch m := m.(type) {
	case *modelOf[algorithms.WindowState]:
		m.limit = l
	case *modelOf[algorithms.BucketState]:
		m.limit = l
	case *modelOf[algorithms.LogState]:
		m.limit = l
	}
}

// TestDecidesByTheLimitOfEachRequest lives random lives in Redis and in the algorithms package, in
// which each request brings its own limit.
//
// no clock: Redis goes by the time that the test sets.
func TestDecidesByTheLimitOfEachRequest(t *testing.T) {
	v := newVirtual(t)
	for i, rule := range []Rule{
		{Kind: algorithms.TokenBucket, Window: time.Minute},
		{Kind: algorithms.TokenBucket, Window: 777777777, Burst: 5},
		{Kind: algorithms.GCRA, Window: time.Hour, Burst: 3},
		{Kind: algorithms.LeakyBucket, Window: time.Second, Queue: 5},
	} {
		t.Run(fmt.Sprintf("%s %s %d", rule.Kind, rule.Window, rule.Burst), func(t *testing.T) {
			v.t = t
			random, zone := rand.New(rand.NewPCG(uint64(i), 7)), fmt.Sprint("z", i)
			v.use(zone, rule)
			m := modelFor(rule)
			for step := range 200 {
				rule.Limit = []int64{0, 1, 4, 20, 100}[random.IntN(5)]
				goBy(m, rule)
				v.set(v.now + random.Int64N(int64(rule.Window/time.Microsecond)/8))
				want := m.take(v.now * 1000)
				g, all := take(t, v.Limiter, zone, id(1), rule)
				if got := all[0].Decision; !same(got, want) || g.Admitted() != want.Allowed {
					t.Fatalf("step %d under %d:\n got %+v\nwant %+v", step, rule.Limit, got, want)
				}
				if random.IntN(8) == 0 && want.Allowed {
					m.giveBack(v.now * 1000)
					v.Refund(g, nil)
					v.settled(zone)
				}
			}
		})
	}
}

// mixedRule is a rule of a kind with one of some limits.
func mixedRule(r Rule, random *rand.Rand) Rule {
	r.Limit = []int64{0, 1, 4, 20, 100}[random.IntN(5)]
	if r.Burst > 0 {
		r.Burst = 1 + random.Int64N(9)
	}
	return r
}

// A call with batches gives each request what it would get if the batches were calls one after the
// other: decision, what remains, waits, and what its node learns of the key. A call that is sent
// twice gets the same and changes nothing, and what nobody heard of is rolled back as a whole.
//
// no clock: Redis goes by the time that the test sets.
func TestBatchesAreCallsOneAfterTheOther(t *testing.T) {
	v := newVirtual(t)
	for i, one := range []Rule{
		{Kind: algorithms.TokenBucket, Window: time.Minute, Burst: 1},
		{Kind: algorithms.GCRA, Window: 777777777, Burst: 3},
		{Kind: algorithms.LeakyBucket, Window: time.Minute, Queue: 7},
	} {
		for n := range 4 {
			limits := 1 + n%2
			one.CountsDenied = n > 1 && !one.Reserves
			t.Run(fmt.Sprintf("%s %s %d %t", one.Kind, one.Window, limits, one.CountsDenied), func(t *testing.T) {
				v.t = t
				random := rand.New(rand.NewPCG(uint64(i), uint64(limits)))
				m := mixedCalls{virtual: v, zones: [2]string{fmt.Sprint("a", i, n), fmt.Sprint("b", i, n)}}
				draw := func() (rules []Rule) {
					for n := range limits {
						rules = append(rules, mixedRule(one, random))
						rules[n].Window *= time.Duration(1 + 3*n)
					}
					return rules
				}
				for _, zone := range m.zones {
					v.use(zone, draw()...)
				}
				rules := draw()
				for i := range rules {
					rules[i].Limit = 4
				}
				for range 120 {
					v.set(v.now + random.Int64N(int64(one.Window/time.Microsecond)/4))
					var batches []batch
					for range 1 + random.IntN(5) {
						// What a penalty fills goes by the limits of the call that brings it.
						if !one.CountsDenied {
							rules = draw()
						}
						batches = append(batches, like(rules, run{int64(1 + random.IntN(4)), 1}))
					}
					m.compare(batches, random.IntN(4))
				}
				if m.granted == 0 || m.denied == 0 {
					t.Errorf("%d granted, %d denied: not all was compared", m.granted, m.denied)
				}
			})
		}
	}
}

// mixedCalls makes calls in two zones that go by the same rules: all batches in one call in the
// first, and each in a call of its own in the other.
type mixedCalls struct {
	*virtual
	zones           [2]string
	granted, denied int
}

// ask makes one call in a zone, and then may send it again.
func (m *mixedCalls) ask(zone string, rollBack int64, again bool, batches ...batch) (seq int64, got []*outcome) {
	m.t.Helper()
	rs := m.Limiter.zones[zone][0]
	c := call{id: id(1), seq: m.seq.Add(1), rollBack: rollBack, rules: rs.shape, batches: batches}
	if len(batches) > 0 {
		c.rules = batches[0].rules
	}
	got, err := m.call(rs, rs.keysOf(c.id), c)
	if err != nil {
		m.t.Fatal(err)
	}
	if again {
		same, err := m.call(rs, rs.keysOf(c.id), c)
		if err != nil {
			m.t.Fatal(err)
		}
		for i := range got {
			if same[i].granted != got[i].granted {
				m.t.Fatalf("batch %d gets %d, and %d of the same call sent again", i, got[i].granted, same[i].granted)
			}
		}
	}
	return c.seq, got
}

// compare has both zones decide the same batches, perhaps after a call that is rolled back.
func (m *mixedCalls) compare(batches []batch, then int) {
	m.t.Helper()
	if then == 0 { // a call that nobody hears of
		seq, _ := m.ask(m.zones[0], 0, false, batches...)
		m.ask(m.zones[0], seq, false)
		for _, b := range batches {
			seq, _ := m.ask(m.zones[1], 0, false, b)
			m.ask(m.zones[1], seq, false)
		}
	}
	_, together := m.ask(m.zones[0], 0, then == 1, batches...)
	denied := int64(0)
	for i, b := range batches {
		_, alone := m.ask(m.zones[1], 0, false, b)
		denied += m.charge(m.zones[1], b.rules, alone[0], int64(len(b.waiters))-alone[0].granted)
		places, placesAlone := placesOf(b, together[i]), placesOf(b, alone[0])
		for n := range places {
			got, want := verdicts(b.rules, together[i], places[n], nil), verdicts(b.rules, alone[0], placesAlone[n], nil)
			for _, all := range [][]Verdict{got, want} {
				for i := range all {
					if r := &all[i].Reports[0]; r.Level == 0 {
						r.Rate = 0 // nothing drains
					}
				}
			}
			if !reflect.DeepEqual(got, want) || together[i].granted != alone[0].granted {
				m.t.Fatalf("batch %d of %+v, request %d:\n got %+v\nwant %+v", i, batches, n+1, got, want)
			}
		}
		m.granted += int(alone[0].granted)
		m.denied += len(b.waiters) - int(alone[0].granted)
	}
	m.charge(m.zones[0], batches[0].rules, together[0], denied)
}

// charge makes a call that charges denied requests where they count.
func (m *mixedCalls) charge(zone string, rules []Rule, o *outcome, n int64) int64 {
	m.t.Helper()
	if !rules[0].CountsDenied || n == 0 {
		return 0
	}
	c := call{id: id(1), seq: m.seq.Add(1), rules: rules, sent: &group{}}
	for range rules {
		c.sent.fixed = append(c.sent.fixed, corrections{{op: penalty, n: n, at: o.at}})
	}
	c.sent.first = c.seq
	rs := m.Limiter.zones[zone][0]
	if _, err := m.call(rs, rs.keysOf(c.id), c); err != nil {
		m.t.Fatal(err)
	}
	return n
}

// TestLimitsOfOneKeyShareItsRecord: whatever limits requests bring, a process has one field in the
// record of a key, and nothing in Redis ends before it was to end.
func TestLimitsOfOneKeyShareItsRecord(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	// ends are the milliseconds of Redis' clock when keys are to end.
	ends := func() map[string]int64 {
		all := map[string]int64{}
		for _, k := range server.Do("KEYS", "*").([]any) {
			all[k.(string)] = server.Do("EVAL", "local now = redis.call('TIME')\nreturn now[1] * 1000 + math.floor(now[2] / 1000) + redis.call('PTTL', KEYS[1])", 1, k).(int64)
		}
		return all
	}
	for name, rule := range kinds {
		rule.Limit, rule.Burst = 5, 0
		take(t, s, name, id(1), rule)
	}
	before := ends()
	for name, rule := range kinds {
		rule.Burst = 0
		for n := range int64(100) {
			rule.Limit = 100_000 + n
			take(t, s, name, id(1), rule)
		}
		if n := len(s.zones[name]); n != 1 {
			t.Errorf("%s: %d rulesets for limits of one shape, want 1", name, n)
		}
		record := ratesync.NewKeyspace("test").Zone(name, "strict").Of(id(1))
		if n := server.Do("HLEN", record).(int64); n != 1 {
			t.Errorf("%s: %d fields in the record of calls, want 1", name, n)
		}
	}
	after := ends()
	for key, end := range before {
		if after[key] < end-10 { // it is rounded
			t.Errorf("%s is to end %d ms earlier than it was to", key, end-after[key])
		}
	}
}

// TestEachRequestGoesByItsOwnLimit: requests of one key that come together are decided each by its
// own limit, and what each got can be refunded.
func TestEachRequestGoesByItsOwnLimit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	for name, rule := range kinds {
		if rule.Kind == algorithms.GCRA || rule.Kind == algorithms.LeakyBucket {
			continue // their limit is a rate, not a size
		}
		rule.Burst = 0
		for range 2 {
			var grants [2][]Grant
			var mu sync.Mutex
			var all sync.WaitGroup
			for i := range 120 {
				rule := rule
				rule.Limit = []int64{5, 40}[i%2]
				all.Go(func() {
					_, g, err := s.Take(context.Background(), name, []Rule{rule}, id(2), 1, nil)
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
					if g.Admitted() {
						mu.Lock()
						grants[i%2] = append(grants[i%2], g)
						mu.Unlock()
					}
				})
			}
			all.Wait()
			low, high := len(grants[0]), len(grants[1])
			if low > 5 || low+high != 40 {
				t.Errorf("%s: %d admitted under 5 and %d under 40, want at most 5, and 40 in all", name, low, high)
			}
			for _, g := range slices.Concat(grants[0], grants[1]) {
				s.Refund(g, nil)
			}
		}
	}
}

// Requests of one key share calls however many limits they go by: a hundred clients need about as
// many round trips as if they all had the same one, and nobody waits for more than the call that is
// under way and its own.
func TestDistinctLimitsShareCalls(t *testing.T) {
	const clients, requests = 100, 20
	one := int64(0)
	for _, limits := range []int{1, 2, 4, 10, 100} {
		calls, waited := sharedCalls(t, clients, requests, limits)
		if limits == 1 {
			one = calls
		}
		t.Logf("%d limits: %d calls for %d requests; half of the requests waited for %d calls at most", limits, calls, clients*requests, waited[len(waited)/2])
		if 6*calls > 10*one {
			t.Errorf("%d limits take %d calls, and one takes %d: less than 0.6 of the throughput", limits, calls, one)
		}
		if half := waited[len(waited)/2]; half > 2 {
			t.Errorf("%d limits: half of the requests waited for %d calls or more, want 2", limits, half)
		}
	}
}

// sharedCalls has clients ask for one key by so many limits, each as soon as it is answered. It
// returns how many calls that took, and how many each request waited for, in order.
func sharedCalls(t *testing.T, clients, requests, limits int) (calls int64, waited []int64) {
	onALine(t, time.Hour, func(t *testing.T, l *line, s *Limiter) {
		l.setTrip(5 * time.Millisecond)
		rule := Rule{Kind: algorithms.TokenBucket, Limit: 1 << 30, Window: long}
		take(t, s, "z", id(1), rule)
		first := s.seq.Load()
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range clients {
			random := rand.New(rand.NewPCG(uint64(i), uint64(limits)))
			all.Go(func() {
				for range requests {
					// Clients don't come all at one instant.
					time.Sleep(time.Duration(random.Int64N(int64(time.Millisecond))))
					rule := rule
					rule.Limit += random.Int64N(int64(limits))
					before := s.seq.Load()
					take(t, s, "z", id(1), rule)
					mu.Lock()
					waited = append(waited, s.seq.Load()-before)
					mu.Unlock()
				}
			})
		}
		all.Wait()
		slices.Sort(waited)
		calls = s.seq.Load() - first
	})
	return calls, waited
}

// Requests that come at a steady rate, whoever waits, don't pile up either where two classes of one
// key come at random: half of them wait for two calls at most, the one under way and their own.
func TestTwoClassesAtASteadyRateDontPileUp(t *testing.T) {
	onALine(t, time.Hour, func(t *testing.T, l *line, s *Limiter) {
		l.setTrip(20 * time.Millisecond)
		low := Rule{Kind: algorithms.TokenBucket, Limit: 80, Window: time.Second}
		high := low
		high.Limit = 100
		take(t, s, "z", id(1), high)
		random := rand.New(rand.NewPCG(1, 2))
		waited := make([]int64, 500)
		var all sync.WaitGroup
		for i := range waited {
			time.Sleep(4 * time.Millisecond) // virtual time
			rule := low
			if random.IntN(2) == 0 {
				rule = high
			}
			all.Go(func() {
				before := s.seq.Load()
				take(t, s, "z", id(1), rule)
				waited[i] = s.seq.Load() - before
			})
		}
		all.Wait()
		slices.Sort(waited)
		half, most := waited[len(waited)/2], waited[len(waited)-1]
		t.Logf("half of the requests waited for %d calls at most, and all for %d", half, most)
		if half > 2 {
			t.Errorf("half of the requests waited for %d calls or more, want 2 at most", half)
		}
	})
}
