package strict

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
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
func TestDecidesByTheLimitOfEachRequest(t *testing.T) {
	v := newVirtual(t)
	for i, rule := range []Rule{
		{Kind: algorithms.FixedWindow, Window: time.Minute},
		{Kind: algorithms.SlidingWindow, Window: time.Minute},
		{Kind: algorithms.SlidingWindow, Window: time.Minute, Buckets: 7},
		{Kind: algorithms.TokenBucket, Window: time.Minute},
		{Kind: algorithms.TokenBucket, Window: 777777777, Burst: 5},
		{Kind: algorithms.GCRA, Window: time.Hour, Burst: 3},
		{Kind: algorithms.LeakyBucket, Window: time.Second, Queue: 5},
		{Kind: algorithms.SlidingLog, Window: time.Minute},
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
					v.Refund(g)
					v.settled(zone)
				}
			}
		})
	}
}

// TestLimitsOfOneKeyShareItsRecord: whatever limits requests bring, a process has one field in the
// record of a key, and nothing in Redis ends before it was to end.
func TestLimitsOfOneKeyShareItsRecord(t *testing.T) {
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	ttls := func() map[string]int64 {
		all := map[string]int64{}
		for _, k := range server.Do("KEYS", "*").([]any) {
			all[k.(string)] = server.Do("PTTL", k).(int64)
		}
		return all
	}
	begin := time.Now()
	for name, rule := range kinds {
		rule.Limit, rule.Burst = 5, 0
		take(t, s, name, id(1), rule)
	}
	before := ttls()
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
	passed := time.Since(begin).Milliseconds() + 1000 // for rounding, and a slow machine
	after := ttls()
	for key, ttl := range before {
		if after[key] < ttl-passed {
			t.Errorf("%s is to end in %d ms, and was to in %d", key, after[key], ttl-passed)
		}
	}
}

// TestCallsAreSharedByEqualLimitsOnly: requests of one key that come together are decided each by
// its own limit.
func TestCallsAreSharedByEqualLimitsOnly(t *testing.T) {
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	for name, rule := range kinds {
		if rule.Kind == algorithms.GCRA || rule.Kind == algorithms.LeakyBucket {
			continue // their limit is a rate, not a size
		}
		rule.Burst = 0
		var admitted [2]atomic.Int64
		var all sync.WaitGroup
		for i := range 120 {
			rule := rule
			rule.Limit = []int64{5, 40}[i%2]
			all.Go(func() {
				_, g, err := s.Take(context.Background(), name, []Rule{rule}, id(2), nil)
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if g.Admitted() {
					admitted[i%2].Add(1)
				}
			})
		}
		all.Wait()
		low, high := admitted[0].Load(), admitted[1].Load()
		if low > 5 || low+high != 40 {
			t.Errorf("%s: %d admitted under 5 and %d under 40, want at most 5, and 40 in all", name, low, high)
		}
	}
}

// TestAChargeBringsItsLimitAlong: what a node decided alone under a limit of its own drains at that
// in Redis, however high the configured one is.
func TestAChargeBringsItsLimitAlong(t *testing.T) {
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	for i, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA, algorithms.LeakyBucket} {
		rule := Rule{Kind: kind, Limit: 60_000_000, Window: time.Minute, Burst: 10, Queue: 9}
		low := rule
		low.Limit = 60
		p := algorithms.Params(rule)
		key := []byte{'k', byte(kind)}
		take(t, s, "z", table.IDOf(key), rule) // puts the high limit in force
		own := tableOf[algorithms.BucketState](p, 10)
		own.Configure(table.SyncConfig{Params: p, Rate: time.Second, Charges: true}, 10)
		for range 10 {
			own.Take(low.compile(), table.KeyOf(key), key, wallClock(), 1, 0)
		}
		own.Tick()
		charges := own.DrainCharges(wallClock(), 10, nil)
		if len(charges) != 1 || charges[0].Rate != 60 {
			t.Fatalf("%s: charges %+v, want one at a rate of 60", kind, charges)
		}
		receipts := s.Charger("z", rule).Charge(context.Background(), "node", []ratesync.Charge{{Charge: charges[0], Seq: int64(i + 1), Made: time.Now()}})
		if r := receipts[0]; r.Err != nil || len(r.Reports) != 1 || r.Reports[0].Rate != 60 {
			t.Fatalf("%s: receipt %+v", kind, receipts)
		}
		// By the configured limit it would have drained in 10 us.
		if _, all := take(t, s, "z", table.IDOf(key), low); all[0].Reports[0].Level < 5 && time.Since(time.Unix(0, charges[0].At)) < 4*time.Second {
			t.Errorf("%s: %+v stands in the bucket, want nearly 10", kind, all[0].Reports)
		}
	}
}
