package main

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/caddy-tide/ratelimit/bench/outside"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// farKeys are more than a table syncs in a second over any of the distances.
const farKeys = 20_000

// showFar measures how many keys one table syncs with a Redis that is far away, where each has
// requests all the time.
func showFar(t *outside.T, d time.Duration) error {
	fmt.Printf("\nMeasured: one table of %s keys that all have requests in every sync, Redis behind a proxy that holds up replies:\n\n", short(farKeys))
	fmt.Printf("| round trip | `sync_rate 100ms` | `sync_rate 1s` | four calls of 100 keys in a round trip |\n|---|---|---|---|\n")
	for _, trip := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond} {
		fmt.Printf("| %d ms |", trip.Milliseconds())
		for _, rate := range []time.Duration{100 * time.Millisecond, time.Second} {
			synced, err := syncedFrom(t, trip, rate, d)
			if err != nil {
				return err
			}
			fmt.Printf(" %s keys a second |", short(synced))
		}
		fmt.Printf(" %s |\n", short(400/trip.Seconds()))
	}
	return nil
}

// syncedFrom is how many keys a second a table syncs.
func syncedFrom(t *outside.T, trip, rate, d time.Duration) (float64, error) {
	server := redistest.Start(t)
	defer server.Kill()
	proxy := faultproxy.Start(t, server.Addr)
	defer proxy.Close()
	proxy.SetDelay(trip)
	n, err := windows.open("redis://"+proxy.Addr, options{limit: idle.limit, window: idle.window, rate: rate})
	if err != nil {
		return 0, err
	}
	defer n.close()
	touchFor(n, 2*time.Second+4*rate) // the first syncs of a key are others
	before, begun := n.replicator.Status(), time.Now()
	touchFor(n, d)
	after := n.replicator.Status()
	if after.Failures > 0 {
		return 0, fmt.Errorf("%d calls failed: %v", after.Failures, after.Failing)
	}
	return float64(after.Keys-before.Keys) / time.Since(begun).Seconds(), nil
}

// touchFor has each key asked for ten times a second, which is more often than it can be synced.
func touchFor(n *node, d time.Duration) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); time.Since(begun) < d; <-tick.C {
		var key [8]byte
		for i := range uint64(farKeys) {
			binary.LittleEndian.PutUint64(key[:], i)
			n.ask(key[:])
		}
	}
}
