package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/bench/outside"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// showHot measures one key that is asked for on several nodes at five times its limit: the early
// syncs near the limit.
func showHot(t *outside.T, d time.Duration) error {
	fmt.Printf("\nMeasured: one key at five times its limit of 1000/5s, on all nodes alike, `sync_rate 500ms`:\n\n")
	fmt.Printf("| nodes | requests a second | calls a second | Redis CPU |\n|---|---|---|---|\n")
	const window = 5 * time.Second
	for _, nodes := range []int{1, 2, 10} {
		server := redistest.Start(t)
		all, err := start(windows, server.URL, nodes, options{limit: 1000, window: window, rate: 500 * time.Millisecond, early: true})
		if err != nil {
			return err
		}
		hammer(all, 1000, window)
		server.Do("CONFIG", "RESETSTAT")
		before, begun := usageOf(server), time.Now()
		n := hammer(all, 1000, max(d, window).Truncate(window))
		seconds := time.Since(begun).Seconds()
		cpu := usageOf(server).since(before).cpu
		calls := float64(server.Calls("evalsha")) - float64(nodes)*seconds // less the heartbeats
		fmt.Printf("| %d | %.0f | %.0f | %.1f %% of a core |\n", nodes, float64(n)/seconds, calls/seconds, cpu/seconds*100)
		for _, n := range all {
			n.close()
		}
		server.Kill()
	}
	return nil
}

// hammer sends requests of one key to the nodes in turn, at a rate.
func hammer(all []*node, rate int, d time.Duration) (n int) {
	key := []byte("hot")
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); time.Since(begun) < d; <-tick.C {
		for due := int(time.Since(begun).Seconds() * float64(rate)); n < due; n++ {
			all[n%len(all)].ask(key)
		}
	}
	return n
}

// showStrict measures sync_rate strict: one key, and a different one for each request.
func showStrict(t *outside.T, d time.Duration) error {
	fmt.Printf("\nMeasured: `sync_rate strict`, 32 requests at once on each node, as fast as it goes:\n\n")
	fmt.Printf("| | requests a second | requests a call | Redis CPU | CPU a request |\n|---|---|---|---|---|\n")
	for _, c := range []struct {
		name        string
		nodes, keys int
	}{{"one key, 1 node", 1, 1}, {"one key, 3 nodes", 3, 1}, {"10,000 keys, 1 node", 1, 10_000}} {
		server := redistest.Start(t)
		before, begun := usageOf(server), time.Now()
		n, err := strictly(server.URL, c.nodes, c.keys, d)
		if err != nil {
			return err
		}
		seconds := time.Since(begun).Seconds()
		cpu := usageOf(server).since(before).cpu
		calls := float64(server.Calls("evalsha"))
		fmt.Printf("| %s | %s | %.1f | %.0f %% of a core | %.1f µs |\n", c.name, short(n/seconds), n/calls, cpu/seconds*100, cpu/n*1e6)
		server.Kill()
	}
	return nil
}

// strictly asks Redis for each request and returns how many were answered.
func strictly(url string, nodes, most int, d time.Duration) (float64, error) {
	var (
		wg      sync.WaitGroup
		n, next atomic.Int64
		failed  atomic.Pointer[error]
		end     = time.Now().Add(d)
	)
	for range nodes {
		client, err := connect(url)
		if err != nil {
			return 0, err
		}
		defer client.Close()
		s := strict.New(client, "caddy", time.Second)
		defer func() { s.CloseBy(time.Now().Add(time.Second)) }()
		ask := asker(s)
		for range 32 {
			wg.Go(func() {
				for time.Now().Before(end) {
					if err := ask(binary.LittleEndian.AppendUint64(nil, uint64(next.Add(1))%uint64(most))); err != nil {
						failed.Store(&err)
						return
					}
					n.Add(1)
				}
			})
		}
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(n.Load()), nil
}

// asker asks Redis for a request of a key, in a zone with a limit that nobody reaches.
func asker(s *strict.Limiter) func(raw []byte) error {
	p := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 1 << 30, Window: time.Hour, SubWindows: 1}
	counters := table.New[algorithms.WindowState](p.Kind, 100_000)
	source := ratesync.NewSource(counters, ratesync.SpecOf("zone", p))
	counters.Prepare(table.SyncConfig{Params: p, Rate: time.Second, AtOnce: true, Waker: source.Waker})
	r := strict.Request{Counters: []strict.Counter{{Table: counters, Source: source}}, Limits: []algorithms.Limit{p.Compile()}, N: 1}
	return func(raw []byte) error {
		one := r
		one.Key, one.Raw = keys.KeyOf(raw), raw
		_, err := s.Ask(context.Background(), "zone", &one, nil)
		return err
	}
}
