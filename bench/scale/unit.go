package main

import (
	"fmt"
	"time"

	"github.com/caddy-tide/ratelimit/bench/outside"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A unit is what one message costs: one key of one node in one sync.
type unit struct {
	nodes   int
	keys    int
	cpu     float64 // seconds of all that Redis uses
	script  float64 // seconds in the script
	in, out float64 // bytes to Redis and from it
	hash    float64 // bytes of memory of a key's hash, once all nodes are in it
}

// messages while unit costs are measured: about a quarter of what one Redis can take
const perSecond = 50_000

// keysFor is with how many keys a number of nodes is measured: so many that their hashes don't all
// stay in a cache near the CPU.
func keysFor(nodes int) int {
	if nodes > 10 {
		return 2_500
	}
	return 10_000
}

// measureUnit lets nodes sync the same keys, for whole intervals of d at least.
func measureUnit(t *outside.T, k kind, nodes int, d time.Duration) (unit, error) {
	server := redistest.Start(t)
	defer server.Kill()
	o, keys := idle, keysFor(nodes)
	o.rate = time.Second * time.Duration(keys*nodes) / perSecond
	all, err := start(k, server.URL, nodes, o)
	if err != nil {
		return unit{}, err
	}
	// until every key has been synced, and again when all nodes were in its hash
	drive(all, keys, o.rate, 3*o.rate+time.Second)
	d = max(d, 2*o.rate).Truncate(o.rate)
	server.Do("CONFIG", "RESETSTAT")
	before, sent := usageOf(server), synced(all)
	drive(all, keys, o.rate, d)
	used := usageOf(server).since(before)
	sent = synced(all) - sent
	script := server.TimeOf("evalsha") * float64(server.Calls("evalsha")) / 1e6
	for _, n := range all {
		n.close()
	}
	full := usageOf(server).memory
	hashes := float64(server.Do("DBSIZE").(int64))
	server.Do("FLUSHALL", "SYNC")
	empty := usageOf(server).memory
	if sent < float64(keys*nodes)/2 {
		return unit{}, fmt.Errorf("%s, %d nodes: %.0f messages for %d keys", k.name, nodes, sent, keys)
	}
	return unit{nodes, keys, used.cpu / sent, script / sent, used.in / sent, used.out / sent, (full - empty) / hashes}, nil
}

func start(k kind, url string, nodes int, o options) (all []*node, err error) {
	for range nodes {
		n, err := k.open(url, o)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// drive touches all keys on all nodes, twice in every interval, for a while.
func drive(all []*node, keys int, rate, d time.Duration) {
	tick := time.NewTicker(rate / 2)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		for _, n := range all {
			n.touch(keys)
		}
	}
}

// synced is how many messages were answered.
func synced(all []*node) (sum float64) {
	for _, n := range all {
		sum += float64(n.replicator.Status().Keys)
	}
	return sum
}

func writeUnits(k kind, all []unit) {
	fmt.Printf("\nMeasured: one message of %s, with so many nodes in each key's hash:\n\n", k.name)
	fmt.Printf("| nodes | keys | Redis CPU | time in the script | bytes to and from Redis | memory of a hash |\n|---|---|---|---|---|---|\n")
	for _, u := range all {
		fmt.Printf("| %d | %d | %.1f µs | %.1f µs | %.0f, %.0f | %.0f B |\n", u.nodes, u.keys, u.cpu*1e6, u.script*1e6, u.in, u.out, u.hash)
	}
}

// showRolls compares how many messages keys cost over the boundaries of windows with what cost
// reckons.
func showRolls(t *outside.T, d time.Duration) error {
	const nodes, keys = 2, 5_000
	o := options{limit: 1 << 30, window: 5 * time.Second, rate: 500 * time.Millisecond, early: true}
	server := redistest.Start(t)
	defer server.Kill()
	all, err := start(windows, server.URL, nodes, o)
	if err != nil {
		return err
	}
	drive(all, keys, o.rate/4, o.window)
	sent := synced(all)
	d = max(d, o.window).Truncate(o.window)
	drive(all, keys, o.rate/4, d)
	sent = (synced(all) - sent) / (nodes * keys * float64(d/o.rate))
	for _, n := range all {
		n.close()
	}
	fmt.Printf("\nMeasured: windows of %v at `sync_rate %v`: %.2f messages for a key, node and interval; the tables below would reckon with %.2f.\n",
		o.window, o.rate, sent, perKey(o.window, o.rate))
	return nil
}
