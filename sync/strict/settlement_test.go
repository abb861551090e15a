package strict

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A settling is one request: what it has got at an instant, and what it costs in truth.
type settling struct {
	by      *Limiter
	grant   Grant
	n, cost int64
}

func (l *settling) settle() { l.by.Settle(l.grant, l.cost) }

// Bound: a bucket in Redis never admits more, in units really used, than its burst and what drains
// at the rate of the request that was decided last; what was charged beyond estimates comes off
// that. Two nodes take and settle in any order, by limits that differ from request to request. It
// holds only if no more is refunded than still stands in the bucket.
func TestABucketInRedisAdmitsNoMoreThanItsBoundInUnitsUsed(t *testing.T) {
	refunded, denied := int64(0), 0
	for seed := range redistest.Seeds(12, 200) {
		onALine(t, 10*time.Second, func(t *testing.T, l *line, s *Limiter) {
			random := rand.New(rand.NewPCG(seed, 9))
			rule := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1 + random.Int64N(200), Window: time.Minute, Burst: 1 + random.Int64N(100), Reserves: true}
			if seed%2 == 1 {
				rule.Kind = algorithms.GCRA
			}
			nodes := []*Limiter{s, l.other(t)}
			var open []settling
			b := usedBucket{rate: rule.Limit, last: time.Now()}
			for range 60 {
				// virtual time
				time.Sleep(time.Duration(random.Int64N(int64(time.Minute) * rule.Burst / rule.Limit / 4)))
				if random.IntN(2) > 0 && len(open) > 0 {
					i := random.IntN(len(open))
					refunded += max(0, open[i].n-open[i].cost)
					open[i].settle()
					open = slices.Delete(open, i, i+1)
					time.Sleep(5 * time.Millisecond) // until it is said
					continue
				}
				one, own := settling{by: nodes[random.IntN(2)], n: 1 + random.Int64N(rule.Burst)}, rule
				if one.cost = random.Int64N(2 * one.n); seed%3 == 0 {
					own.Limit *= 1 + random.Int64N(4)
				}
				one.grant = pay(t, one.by, "z", one.n, own)
				if b.decide(own.Limit, min(one.n, one.cost), one.grant.Admitted()); one.grant.Admitted() {
					open = append(open, one)
				} else {
					denied++
				}
			}
			if over := b.most - float64(rule.Burst); over > 1e-3 {
				t.Fatalf("seed %d, %+v: %.2f above the burst", seed, rule, over)
			}
		})
	}
	if refunded == 0 || denied == 0 {
		t.Errorf("%d were to be refunded and %d were denied, want some of each", refunded, denied)
	}
}

// pay asks for n units.
func pay(t *testing.T, s *Limiter, zone string, n int64, rules ...algorithms.Params) Grant {
	t.Helper()
	_, g, err := s.Take(t.Context(), zone, rules, id(1), n, nil)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// A usedBucket knows what each request has really used.
type usedBucket struct {
	level, most float64
	last        time.Time
	rate        int64
}

func (b *usedBucket) decide(rate, used int64, admitted bool) {
	now := time.Now()
	b.level = max(0, b.level-float64(now.Sub(b.last))*float64(b.rate)/float64(time.Minute))
	b.last, b.rate = now, rate
	if admitted {
		b.level += float64(used)
		b.most = max(b.most, b.level)
	}
}

// Law: when all is settled, Redis has exactly what was really used, whatever ran at once on three
// nodes, and though replies are lost. SubWindows have that at least, and no more than was reserved
// or charged.
func TestWhatIsSettledInRedisIsWhatWasUsed(t *testing.T) {
	for name, rule := range cellsOf(1<<20, 1000*long) {
		if rule.Reserves = true; rule.Kind.Traits().Queues {
			continue // which has no responses that decide
		}
		onALine(t, 300*time.Millisecond, func(t *testing.T, l *line, s *Limiter) {
			random := rand.New(rand.NewPCG(1, 1))
			nodes := []*Limiter{s, l.limiter(t, 300*time.Millisecond), l.other(t)}
			used, upTo := int64(0), int64(0)
			var open []settling
			for range 120 {
				l.setDrops(random.IntN(4) == 0)
				one := settling{by: nodes[random.IntN(3)], n: 1 + random.Int64N(5000), cost: random.Int64N(10_000)}
				var err error
				if _, one.grant, err = one.by.Take(t.Context(), "z", []algorithms.Params{rule}, id(1), one.n, nil); err == nil {
					if !one.grant.Admitted() {
						t.Fatalf("%s: %d are denied by %+v", name, one.n, one.grant.took)
					}
					open = append(open, one)
					used, upTo = used+one.cost, upTo+max(one.n, one.cost)
				}
				if l.setDrops(false); random.IntN(2) == 0 && len(open) > 0 {
					i := random.IntN(len(open))
					open[i].settle()
					open = slices.Delete(open, i, i+1)
				}
				time.Sleep(time.Duration(random.Int64N(int64(time.Second)))) // virtual time
			}
			for i := range open {
				open[i].settle()
			}
			time.Sleep(10 * time.Second) // virtual time
			got := spentIn(l.store.Hash, "z", rule)
			if rule.Kind.Traits().Draining {
				if got < used-2 || got > upTo {
					t.Errorf("%s: Redis has %d, want %d to %d", name, got, used, upTo)
				}
			} else if got != used {
				t.Errorf("%s: Redis has %d, and %d were used", name, got, used)
			}
		})
	}
}

// Of requests of a bucket on one node each gets back what it has not used, in whatever order their
// responses begin.
func TestRequestsOfABucketSettleInAnyOrder(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA} {
		for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}} {
			onALine(t, time.Second, func(t *testing.T, l *line, s *Limiter) {
				rule := algorithms.Params{Kind: kind, Limit: 1000, Window: 1000 * long, Burst: 1000, Reserves: true}
				var open []settling
				for range order {
					open = append(open, settling{by: s, grant: pay(t, s, "z", 200, rule), cost: 10})
				}
				for _, i := range order {
					open[i].settle()
					time.Sleep(time.Second) // virtual time
				}
				if got := spentIn(l.store.Hash, "z", rule); got < 38 || got > 40 {
					t.Errorf("%s, %v: %d are held, and 40 were used", kind, order, got)
				}
			})
		}
	}
}

// spentIn is what the cell of the tests' key has in a Redis: of a bucket what is in it.
func spentIn(hash func(key string) map[string]string, zone string, rule algorithms.Params) (n int64) {
	cell := ratesync.NewKeyspace("test").Cells(ratesync.SpecOf(zone, rule)).Of(keyID())
	words := strings.Fields(hash(cell)["sum"])
	if rule.Kind.Traits().Draining {
		words = words[4:5]
	} else {
		words = slices.Concat(words[:1], words[5:])
	}
	for _, word := range words {
		one, _ := strconv.ParseInt(word, 10, 64)
		n += one
	}
	return n
}

// A charge fills a bucket with no more than drains in a window beyond its size. A window holds all
// of it, as far as doubles count.
func TestADebtInRedisIsBounded(t *testing.T) {
	for _, rule := range []algorithms.Params{
		{Kind: algorithms.TokenBucket, Limit: 10, Window: 1000 * long, Burst: 30, Reserves: true},
		{Kind: algorithms.GCRA, Limit: 10, Window: 1000 * long, Burst: 30, Reserves: true},
	} {
		onALine(t, time.Second, func(t *testing.T, l *line, s *Limiter) {
			var open []settling
			for range 3 {
				open = append(open, settling{by: s, grant: pay(t, s, "z", 3, rule), cost: 1 << 60})
			}
			for i := range open {
				open[i].settle()
				time.Sleep(time.Second) // virtual time
			}
			if got := spentIn(l.store.Hash, "z", rule); got < 39 || got > 40 {
				t.Errorf("%s: %d are held, want 40", rule.Kind, got)
			}
		})
	}
}

// What a node had to decide alone, while Redis was away, counts there as soon as it is back.
func TestWhatANodeDecidesAloneCountsLater(t *testing.T) {
	for name, rule := range cellsOf(100, long) {
		onALine(t, 100*time.Millisecond, func(t *testing.T, l *line, s *Limiter) {
			g, _ := take(t, s, "z", id(1), rule)
			l.loads.Store(true)
			redistest.Eventually(t, "the circuit opens", func() bool {
				_, _, err := s.Take(t.Context(), "z", []algorithms.Params{rule}, id(1), 1, nil)
				return err != nil && s.Down()
			})
			by := g.r.Counters[0].Table.(*aTable)
			for range 30 {
				by.Take(rule.Compile(), g.r.Key, g.r.Raw, by.now(), 1, 0)
			}
			l.loads.Store(false)
			time.Sleep(5 * time.Second) // virtual time
			if got := drain(t, l.other(t), "z", id(1), rule); got != 69 {
				t.Errorf("%s: %d are admitted after one by Redis and 30 without, want 69", name, got)
			}
		})
	}
}

// A request that Redis denies, as one of its limits is used up, reserves nothing of the others,
// which would have room: nothing would ever settle it.
func TestADenialReservesNothing(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.GCRA, algorithms.TokenBucket, algorithms.FixedWindow} {
		onALine(t, time.Second, func(t *testing.T, l *line, s *Limiter) {
			rules := []algorithms.Params{
				{Kind: kind, Limit: 1000, Window: 1000 * long, Burst: 1000, Reserves: true},
				{Kind: kind, Limit: 1, Window: 2000 * long, Burst: 1, Reserves: true},
			}
			_, admitted, err := s.Take(t.Context(), "z", rules, id(1), 1, nil)
			if err != nil || !admitted.Admitted() {
				t.Fatalf("%s: %v, %+v", kind, err, admitted.took)
			}
			for range 5 {
				if _, denied, err := s.Take(t.Context(), "z", rules, id(1), 1, nil); err != nil || denied.Admitted() {
					t.Fatalf("%s: %v, %+v, want a denial", kind, err, denied.took)
				}
			}
			s.Settle(admitted, 1)
			admitted.each(func(by *aTable, _ algorithms.Limit, _ table.Taken) {
				if n := by.Reservations().Len(); n != 0 {
					t.Errorf("%s: something is reserved of %d keys after all has settled", kind, n)
				}
			})
		})
	}
}
