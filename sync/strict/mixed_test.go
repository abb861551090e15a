package strict

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// goBy has a model decide the next requests by another limit.
func goBy(m model, r algorithms.Params) {
	l := r.Compile()
	switch m := m.(type) {
	case *modelOf[algorithms.WindowState]:
		m.limit = l
	case *modelOf[algorithms.BucketState]:
		m.limit = l
	case *modelOf[algorithms.LogState]:
		m.limit = l
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
					_, g, err := s.Take(context.Background(), name, []algorithms.Params{rule}, id(2), 1, nil)
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
				s.Refund(g)
			}
			settles(t, s)
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
		rule := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1 << 30, Window: long}
		take(t, s, "z", id(1), rule)
		first := l.calls()
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
					before := l.calls()
					take(t, s, "z", id(1), rule)
					mu.Lock()
					waited = append(waited, l.calls()-before)
					mu.Unlock()
				}
			})
		}
		all.Wait()
		slices.Sort(waited)
		calls = l.calls() - first
	})
	return calls, waited
}

// Requests that come at a steady rate, whoever waits, don't pile up either where two classes of one
// key come at random: half of them wait for two calls at most, the one under way and their own.
func TestTwoClassesAtASteadyRateDontPileUp(t *testing.T) {
	onALine(t, time.Hour, func(t *testing.T, l *line, s *Limiter) {
		l.setTrip(20 * time.Millisecond)
		low := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 80, Window: time.Second}
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
				before := l.calls()
				take(t, s, "z", id(1), rule)
				waited[i] = l.calls() - before
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
