//go:build chaos

package strict

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// strictRegion is a Redis where a strict zone counts, with ways to the others that have faults, and
// two nodes that would tell them.
type strictRegion struct {
	name    string
	client  redis.UniversalClient
	limiter *Limiter
	node    *cellNode
	links   map[string]*faultproxy.Proxy
	others  map[string]redis.UniversalClient
	relays  []*ratesync.Replicator
}

func startStrictRegions(t *testing.T, n int, rule algorithms.Params) (all []*strictRegion) {
	servers := make([]*redistest.Server, n)
	for i := range servers {
		servers[i] = redistest.Start(t)
	}
	for i, server := range servers {
		r := &strictRegion{name: fmt.Sprint("r", i), client: client(t, server.URL), links: make(map[string]*faultproxy.Proxy), others: make(map[string]redis.UniversalClient)}
		r.limiter = New(r.client, "test", 10*time.Second, zap.NewNop())
		for j, other := range servers {
			if i != j {
				name := fmt.Sprint("r", j)
				r.links[name] = faultproxy.Start(t, other.Addr)
				r.others[name] = client(t, "redis://"+r.links[name].Addr)
			}
		}
		for range 2 {
			r.relays = append(r.relays, r.relay())
		}
		r.node = r.limiter.cells(t, r.client, rule)
		r.node.Counters[0].Syncer.SetLeastTold(1)
		t.Cleanup(func() {
			for _, relay := range r.relays {
				relay.Close()
			}
			r.limiter.CloseBy(time.Now().Add(time.Second))
		})
		all = append(all, r)
	}
	return all
}

func (r *strictRegion) relay() *ratesync.Replicator {
	x := ratesync.NewReplicator(r.client, "test", 10*time.Second, clock.Now, zap.NewNop())
	x.Relay(ratesync.Regions{Here: r.name, Others: r.others, Interval: 200 * time.Millisecond})
	x.Start()
	return x
}

// harm changes at random how its links are.
func (r *strictRegion) harm(random *rand.Rand) {
	for _, link := range r.links {
		switch random.IntN(12) {
		case 0:
			link.Set([]faultproxy.Fault{faultproxy.DropReplies, faultproxy.Blackhole, faultproxy.Reset}[random.IntN(3)])
		case 1:
			link.SetDelay(time.Duration(random.IntN(100)) * time.Millisecond)
		case 2, 3:
			link.Set(faultproxy.None)
		}
	}
}

// Whatever happens to links and relays: once all is well again, each region's Redis has what all
// regions have admitted in a strict zone, to the request, without a further one. None admits more
// than the limit by itself.
func TestStrictWindowsOfRegionsConverge(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingLog, algorithms.TokenBucket} {
		t.Run(kind.String(), func(t *testing.T) { strictRegionsConverge(t, kind) })
	}
}

func strictRegionsConverge(t *testing.T, kind algorithms.Kind) {
	const regions, many, limit = 3, 4, 100
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	rule := algorithms.Params{Kind: kind, Limit: limit, Window: 16_000 * time.Hour}
	all := startStrictRegions(t, regions, rule)
	own := make(map[[2]int]int64) // by region and key
	take := func(region, key int, n int64) {
		took, err := all[region].node.ask(fmt.Sprint(key), n)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if !took[0].Unspent {
			own[[2]int{region, key}] += n
		}
	}
	for range 40 {
		r := all[random.IntN(regions)]
		r.harm(random)
		if random.IntN(15) == 0 {
			r.relays[0].Close()
			r.relays = append(r.relays[1:], r.relay())
		}
		for range random.IntN(20) {
			take(random.IntN(regions), random.IntN(many), random.Int64N(3))
		}
		redistest.Pause(time.Duration(random.Int64N(int64(100 * time.Millisecond))))
	}
	for _, r := range all {
		for _, link := range r.links {
			link.Set(faultproxy.None)
		}
	}
	cells := ratesync.NewKeyspace("test").Cells(ratesync.SpecOf(t.Name(), rule))
	for key := range many {
		want := int64(0)
		for region := range regions {
			if n := own[[2]int{region, key}]; n > limit {
				t.Errorf("seed %d: %s admits %d of %d", seed, all[region].name, n, limit)
			}
			want += own[[2]int{region, key}]
		}
		cell := cells.Of(keys.IDOf([]byte(fmt.Sprint(key))))
		for _, r := range all {
			got := ""
			if !redistest.Poll(30*time.Second, func() bool {
				sum, _ := r.client.HGet(t.Context(), cell, "sum").Result()
				words := append(strings.Fields(sum), "")
				if got = words[0]; kind == algorithms.TokenBucket && len(words) > 6 {
					level, _ := strconv.Atoi(words[4])
					got = fmt.Sprint(level + min(1, len(strings.Trim(words[5], "0"))))
				}
				return got == fmt.Sprint(want) || want == 0
			}) {
				t.Fatalf("seed %d: %s has %q of key %d, want %d: %v", seed, r.name, got, key, want, r.client.HGetAll(t.Context(), cell).Val())
			}
		}
	}
}
