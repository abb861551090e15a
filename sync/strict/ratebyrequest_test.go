package strict

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// Bound: where requests of a bucket in Redis come with limits of their own, and reserve and settle,
// it never admits more in units really used than its burst and what drains. That is at the rate of
// the request that was decided last.
//
// no clock: Redis goes by the time that the test sets.
func TestABucketWithARateForEachRequestAdmitsNoMoreThanItsBound(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	nodes := []*virtual{newVirtualOn(t, server), newVirtualOn(t, server)}
	refunded, denied := int64(0), 0
	for seed := range redistest.Seeds(30, 60) {
		random := rand.New(rand.NewPCG(seed, 4))
		rule := Rule{Kind: algorithms.TokenBucket, Limit: 1 + random.Int64N(100), Window: time.Minute, Burst: 1 + random.Int64N(100), Reserves: true}
		if seed%2 == 1 {
			rule.Kind = algorithms.GCRA
		}
		zone := fmt.Sprint("rates", seed)
		for _, v := range nodes {
			v.use(zone, rule)
		}
		var open []settling
		b := usedBucket{rate: rule.Limit, last: nodes[0].now}
		var all []decided
		for range 60 {
			now := nodes[0].now + random.Int64N(int64(time.Minute/time.Microsecond)*rule.Burst/rule.Limit/4)
			nodes[0].set(now)
			v := nodes[random.IntN(2)]
			if random.IntN(2) == 0 {
				own := rule
				own.Limit *= 1 + random.Int64N(4)
				n := 1 + random.Int64N(rule.Burst)
				d := decided{at: now, rate: own.Limit, n: n, cost: random.Int64N(2*n + 1)}
				g, said := pay(t, v.Limiter, zone, id(1), n, own)
				if d.admitted = g.Admitted(); d.admitted {
					open = append(open, settling{v.Limiter, g, said[0].Top, now, n, d.cost})
				} else {
					denied++
				}
				all = append(all, d)
			} else if len(open) > 0 {
				i := random.IntN(len(open))
				open[i].settle()
				refunded += max(0, open[i].n-open[i].cost)
				open = slices.Delete(open, i, i+1)
				nodes[0].settled(zone)
				nodes[1].settled(zone)
			}
		}
		for _, d := range all {
			b.decide(d)
		}
		if over := b.most - float64(rule.Burst); over > 1e-3 {
			t.Fatalf("seed %d, %+v: %.2f above the burst", seed, rule, over)
		}
		server.Do("FLUSHDB")
	}
	if refunded == 0 || denied == 0 {
		t.Errorf("%d were to be refunded and %d were denied, want some of each", refunded, denied)
	}
}

// A decided is a request and what became of it, and a usedBucket one that knows what each has
// really used, as far as that was reserved.
type decided struct {
	at, rate, n, cost int64
	admitted          bool
}

type usedBucket struct {
	level, most float64
	last, rate  int64
}

func (b *usedBucket) decide(d decided) {
	b.level = max(0, b.level-float64(d.at-b.last)*float64(b.rate)/float64(time.Minute/time.Microsecond))
	b.last, b.rate = d.at, d.rate
	if d.admitted {
		b.level += float64(min(d.n, d.cost))
		b.most = max(b.most, b.level)
	}
}
