//go:build chaos

package strict

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// TestDecisionsMadeAloneAreChargedLater: whatever nodes decide while they can't ask Redis, or
// don't, is counted there when they can again: in every algorithm, strict or with an interval, to
// the request. Then what is left of the limit is left, and no more.
func TestDecisionsMadeAloneAreChargedLater(t *testing.T) {
	server := redistest.Start(t)
	for name, rule := range kinds {
		rule.Window = 20 * time.Hour // nothing drains or leaves meanwhile
		for _, rate := range []time.Duration{0, 50 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s, sync_rate %s", name, rate), func(t *testing.T) {
				t.Parallel()
				zone := fmt.Sprint(name, rate.Milliseconds())
				random := rand.New(rand.NewPCG(uint64(rule.Kind), uint64(rate)))
				admitted := 0
				var nodes []peer
				var proxies []*faultproxy.Proxy
				for range 2 {
					proxies = append(proxies, faultproxy.Start(t, server.Addr))
					nodes = append(nodes, newPeer(t, proxies[len(nodes)].Addr, zone, rule, rate))
				}
				for _, fault := range []faultproxy.Fault{faultproxy.None, faultproxy.DropReplies, faultproxy.None, faultproxy.Reset, faultproxy.Blackhole} {
					for i, p := range proxies {
						if random.IntN(3) > 0 || i == 0 {
							p.Set(fault)
						}
					}
					for range 6 {
						if nodes[random.IntN(2)].decides("k") {
							admitted++
						}
						redistest.Pause(time.Duration(random.IntN(30)) * time.Millisecond)
					}
				}
				for _, p := range proxies {
					p.Set(faultproxy.None)
				}
				for i, n := range nodes {
					redistest.Eventually(t, fmt.Sprintf("node %d has sent all", i), n.settled)
				}
				if admitted != 30 {
					t.Fatalf("%d of 30 admitted far below the limit", admitted)
				}
				if rate > 0 {
					if sum := countedIn(t, server, zone); sum != 30 {
						t.Errorf("redis counts %d, want 30", sum)
					}
				} else if left := drain(t, limiter(t, server.URL), zone, keys.IDOf([]byte("k")), rule); left != 70 {
					t.Errorf("redis admits %d more, want 70 of 100", left)
				}
				for _, n := range nodes {
					n.end()
				}
			})
		}
	}
}

// A charge that arrives and whose answer is lost is sent again, and counts once. What is decided
// meanwhile is charged as well.
func TestAChargeWhoseReplyIsLostCountsOnce(t *testing.T) {
	server := redistest.Start(t)
	for name, rule := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule.Window = 20 * time.Hour
			proxy := faultproxy.Start(t, server.Addr)
			n := newPeer(t, proxy.Addr, name, rule, 0)
			defer n.end()
			charged := func() int {
				c := server.Client()
				defer c.Close()
				records := c.Keys(context.Background(), "test:*:"+name+":*:charged").Val()
				if len(records) == 0 {
					return 0
				}
				sum := 0
				for _, seq := range c.HVals(context.Background(), records[0]).Val() {
					n, _ := strconv.Atoi(seq)
					sum += n
				}
				return sum
			}
			admitted := 0
			alone := func(count int) {
				for range count {
					if n.alone("k") {
						admitted++
					}
				}
			}
			// A new connection is not even greeted, so nothing may arrive where a heartbeat took
			// the connections that there were. Then it is tried again.
			for arrived, tries := false, 0; !arrived; tries++ {
				if tries == 20 {
					t.Fatal("no charge arrives whose reply is lost")
				}
				redistest.Eventually(t, "all is charged", n.settled)
				if n.decides("k") {
					admitted++
				}
				before := charged()
				proxy.Set(faultproxy.DropReplies)
				alone(2)
				arrived = redistest.Poll(200*time.Millisecond, func() bool { return charged() > before })
				alone(1)
				proxy.Set(faultproxy.None)
			}
			redistest.Eventually(t, "all is charged", n.settled)
			if left := drain(t, limiter(t, server.URL), name, keys.IDOf([]byte("k")), rule); left != 100-admitted {
				t.Errorf("after %d admitted redis admits %d more, want %d", admitted, left, 100-admitted)
			}
		})
	}
}

// countedIn is what the hashes of a zone count in all.
func countedIn(t *testing.T, server *redistest.Server, zone string) (sum int64) {
	t.Helper()
	c := server.Client()
	for _, key := range c.Keys(context.Background(), "test:*:"+zone+":*").Val() {
		total, _, _ := strings.Cut(c.HGet(context.Background(), key, "sum").Val(), " ")
		n, _ := strconv.ParseInt(total, 10, 64)
		sum += n
	}
	return sum
}

// TestAChargeBringsItsLimitAlong: what a node decided alone under a limit of its own drains at that
// in Redis, however high the configured one is.
func TestAChargeBringsItsLimitAlong(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	for i, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA, algorithms.LeakyBucket} {
		rule := Rule{Kind: kind, Limit: 60_000_000, Window: time.Minute, Burst: 10, Queue: 9}
		low := rule
		low.Limit = 60
		p := algorithms.Params(rule)
		key := []byte{'k', byte(kind)}
		take(t, s, "z", keys.IDOf(key), rule) // puts the high limit in force
		own := tableOf[algorithms.BucketState](p, 10)
		own.Configure(table.SyncConfig{Params: p, Rate: time.Second, Charges: true}, 10)
		for range 10 {
			own.Take(low.compile(), keys.KeyOf(key), key, clock.Now(), 1, 0)
		}
		own.Tick()
		charges := own.DrainCharges(clock.Now(), 10, nil)
		if len(charges) != 1 || charges[0].Rate != 60 {
			t.Fatalf("%s: charges %+v, want one at a rate of 60", kind, charges)
		}
		receipts := s.Charger("z", rule).Charge(context.Background(), "node", []ratesync.Charge{{Charge: charges[0], Seq: int64(i + 1), Made: time.Now()}})
		if r := receipts[0]; r.Err != nil || len(r.Reports) != 1 || r.Reports[0].Rate != 60 {
			t.Fatalf("%s: receipt %+v", kind, receipts)
		}
		// By the configured limit it would have drained in 10 us.
		if _, all := take(t, s, "z", keys.IDOf(key), low); all[0].Reports[0].Level < 5 && time.Since(time.Unix(0, charges[0].At)) < 4*time.Second {
			t.Errorf("%s: %+v stands in the bucket, want nearly 10", kind, all[0].Reports)
		}
	}
}

// admittedOf returns how many of so many requests of a key are admitted.
func admittedOf(count int, admits func(key string) bool) (admitted int) {
	for range count {
		if admits("k") {
			admitted++
		}
	}
	return admitted
}

// What nodes decided alone before a reset is forgiven, also where it is on its way to Redis, and
// what they decide alone after it counts.
func TestChargesUnderAReset(t *testing.T) {
	server := redistest.Start(t)
	for name, rule := range kinds {
		rule.Window = 20 * time.Hour
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := faultproxy.Start(t, server.Addr)
			nodes := []peer{newPeer(t, proxy.Addr, name, rule, 0), newPeer(t, server.Addr, name, rule, 0)}
			decide := func(n peer, count int) int { return admittedOf(count, n.decides) }
			alone := func(n peer, count int) int { return admittedOf(count, n.alone) }
			settle := func() {
				t.Helper()
				proxy.Set(faultproxy.None)
				for _, n := range nodes {
					redistest.Eventually(t, "all is charged", n.settled)
				}
			}
			forgive := func() {
				now := resetNow(t, server).Keys[id(1)]
				for _, n := range nodes {
					n.reset(&reset.Set{Keys: map[[16]byte]reset.Reset{keys.IDOf([]byte("k")): now}})
				}
			}
			settle()
			decide(nodes[1], 60)
			for _, fault := range []faultproxy.Fault{faultproxy.Blackhole, faultproxy.DropReplies} {
				proxy.Set(fault)
				alone(nodes[0], 30)
				redistest.Pause(100 * time.Millisecond) // a charge is on its way, or has arrived
				forgive()
				after := alone(nodes[0], 20)
				got := after + decide(nodes[1], 10) // Redis learns of the reset
				settle()
				redistest.Pause(100 * time.Millisecond)
				for range 2 {
					got += decide(nodes[1], 60) + decide(nodes[0], 60)
				}
				if after != 20 || got != 100 {
					t.Errorf("with fault %d %d are admitted after the reset, %d of them alone, want 100 and 20", fault, got, after)
				}
			}
			for _, n := range nodes {
				n.end()
			}
		})
	}
}
