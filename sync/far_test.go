package ratesync

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// farFlood sends requests of one key to nodes at random, for a while, and returns how many were
// admitted and sent. Each node has a round trip of its own.
func farFlood(t *testing.T, seed uint64, alg algorithms.Params, trips []time.Duration, rate, lasts time.Duration, perSecond int) (admitted, sent int) {
	synctest.Test(t, func(t *testing.T) {
		store := newLuaStore(t)
		var nodes []lone[algorithms.WindowState]
		for i, trip := range trips {
			net := &network{random: rand.New(rand.NewPCG(seed, uint64(i))), way: trip / 2}
			nodes = append(nodes, newLone[algorithms.WindowState](len(nodes), &wire{net: net, store: store}, alg, rate))
		}
		time.Sleep(2500 * time.Millisecond) // they know how far away it is
		random := rand.New(rand.NewPCG(seed, 99))
		for sent = range int(lasts.Seconds() * float64(perSecond)) {
			n := nodes[random.IntN(len(nodes))]
			if n.Take(alg.Compile(), keys.KeyOf([]byte("k")), []byte("k"), wallClock(), 1, 0).Allowed {
				admitted++
			}
			time.Sleep(time.Duration(random.ExpFloat64() * float64(time.Second) / float64(perSecond)))
		}
		for _, n := range nodes {
			if s := n.Replicator.Status(); s.Failures > 0 {
				t.Errorf("%d calls failed, want none", s.Failures)
			}
			n.end()
		}
	})
	return admitted, sent + 1
}

// Four nodes, all of them or two 100 ms away from the store: of a flood of twice the limit a second
// they admit hardly more than the limit, and of a client below its limit they deny nothing.
//
// bubble: farFlood runs in one.
func TestAFloodOverNodesFarAway(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, trips := range map[string][]time.Duration{
		"all": {100 * ms, 100 * ms, 100 * ms, 100 * ms}, "two of four": {ms, ms, 100 * ms, 100 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			const limit, first = 2000, 2000 // the estimate was made with other seeds
			sum, most, seeds := 0, 0, redistest.Times(40, 40)
			for seed := uint64(first); seed < first+uint64(seeds); seed++ {
				admitted, _ := farFlood(t, seed, algorithms.Params{Kind: algorithms.FixedWindow, Limit: limit, Window: 1000 * time.Hour}, trips, 100*ms, 2*time.Second, 2*limit)
				most = max(most, admitted)
				if sum += admitted; admitted > limit*106/100 {
					t.Errorf("seed %d: %d admitted of a limit of %d, want 1.06 of it at most", seed, admitted, limit)
				}
			}
			mean := float64(sum) / float64(seeds) / limit
			t.Logf("%.3f of the limit in the mean, %.3f at most", mean, float64(most)/limit)
			if mean > 1.02 && seeds > 1 {
				t.Errorf("%.3f of the limit in the mean, want 1.02 at most", mean)
			}
			tenfold, _ := farFlood(t, first, algorithms.Params{Kind: algorithms.FixedWindow, Limit: limit, Window: 1000 * time.Hour}, trips, 100*ms, time.Second, 10*limit)
			t.Logf("%.2f of the limit at ten times the limit a second", float64(tenfold)/limit)
			if tenfold > limit*5/2 { // nobody knows of what comes in two round trips
				t.Errorf("%d admitted at ten times the limit of %d a second, want 2.5 of it at most", tenfold, limit)
			}
			for seed := range uint64(redistest.Times(4, 4)) {
				admitted, sent := farFlood(t, seed, algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 4000, Window: 5 * time.Second}, trips, 100*ms, 15*time.Second, 640)
				if admitted != sent {
					t.Errorf("seed %d: %d of %d requests at 0.8 of the limit were denied, want none", seed, sent-admitted, sent)
				}
			}
		})
	}
}

// A farConn is a connection on which what is written arrives a trip later.
type farConn struct {
	net.Conn
	trip time.Duration
}

// Write takes the trip.
//
// bubble: of each test.
func (c *farConn) Write(b []byte) (int, error) {
	time.Sleep(c.trip)
	return c.Conn.Write(b)
}

// farAway runs a test in virtual time with a Redis that runs the real scripts, and a client of it
// that is made as users' are: each answer takes a trip, and so does a connection.
func farAway(t *testing.T, trip, timeout time.Duration, test func(t *testing.T, r *miniredis.Miniredis, client *redis.Client)) {
	synctest.Test(t, func(t *testing.T) {
		r := miniredis.NewMiniRedis()
		t.Cleanup(func() {
			time.Sleep(time.Minute) // until who still connects has ended
			r.Close()
		})
		client := clientOf(t, "redis://127.0.0.1?timeout="+timeout.String()).(*redis.Client)
		client.Options().Dialer = func(context.Context, string, string) (net.Conn, error) {
			time.Sleep(trip)
			conn, err := r.Dial()
			return &farConn{conn, trip}, err
		}
		test(t, r, client)
	})
}

// countedBy is what a Redis counts of all keys.
func countedBy(r *miniredis.Miniredis) (all int64) {
	for _, key := range r.Keys() {
		if strings.Contains(key, ":z:") {
			all += first(r.HGet(key, "sum"))
		}
	}
	return all
}

// A Redis that is further away than the interval is not taken for a lost one: every key arrives
// there, and no call fails, the first ones with their connections included.
func TestKeysArriveAtARedisFurtherAwayThanTheInterval(t *testing.T) {
	const keys = 1000
	farAway(t, 150*time.Millisecond, 10*time.Second, func(t *testing.T, r *miniredis.Miniredis, client *redis.Client) {
		a := startNodeWithin(t, client, 10*time.Second, anEpoch, 100*time.Millisecond, wallClock)
		for round := range int64(3) {
			for i := range keys {
				a.take(fmt.Sprint("k", i), 1)
			}
			time.Sleep(3 * time.Second)
			if got := countedBy(r); got != keys*(round+1) {
				t.Errorf("three seconds later Redis counts %d of %d", got, keys*(round+1))
			}
		}
		if unsent := a.table.Totals(a.now()).Unsent; unsent > 0 {
			t.Errorf("%d are not answered", unsent)
		}
		if s := a.rep.Status(); s.Failures > 0 {
			t.Errorf("%d calls failed and %d were answered, want none failed", s.Failures, s.Syncs)
		}
	})
}

// Each answer that a call waits for may take the timeout: a call that has to connect first, with
// four answers, is not given up for their sum.
func TestACallThatHasToConnectFarAway(t *testing.T) {
	const trip, timeout = 1050 * time.Millisecond, 3 * time.Second
	farAway(t, trip, timeout, func(t *testing.T, r *miniredis.Miniredis, client *redis.Client) {
		a := startNodeWithin(t, client, timeout, anEpoch, 100*time.Millisecond, wallClock)
		a.take("k", 1)
		time.Sleep(time.Minute)
		if got, unsent := countedBy(r), a.table.Totals(a.now()).Unsent; got != 1 || unsent != 0 {
			t.Errorf("Redis counts %d, and %d are not answered, want 1 and 0", got, unsent)
		}
		if s := a.rep.Status(); s.Failures > 0 {
			t.Errorf("%d calls failed, want none", s.Failures)
		}
	})
}

// The same for a call about bans.
func TestACallForBansThatHasToConnectFarAway(t *testing.T) {
	const trip, timeout = 1050 * time.Millisecond, 3 * time.Second
	farAway(t, trip, timeout, func(t *testing.T, _ *miniredis.Miniredis, client *redis.Client) {
		began := time.Now()
		if err := banNodeWith(t, client).ask(t.Context(), timeout, oneKey); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < timeout {
			t.Errorf("it took %v, which is within the timeout of one answer", took)
		}
	})
}
