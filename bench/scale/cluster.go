package main

import (
	"fmt"
	"time"

	"github.com/caddy-tide/ratelimit/bench/outside"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

const (
	clusterNodes = 2
	clusterKeys  = 25_000
)

const serversHead = "| | hash tags | keys | messages a second | calls a second | CPU |\n|---|---|---|---|---|---|\n"

// showCluster syncs keys through three masters, and through one Redis for comparison.
func showCluster(t *outside.T, d time.Duration) error {
	cluster := redistest.StartCluster(t, 3)
	single := redistest.Start(t)
	defer single.Kill()
	fmt.Printf("\nMeasured: %d nodes with the same %s keys, synced once a second, and a Redis Cluster of three masters:\n\n", clusterNodes, short(clusterKeys))
	fmt.Print(serversHead)
	of := tagsOf(3)
	if err := showServers(cluster.URL, cluster.Nodes, clusterKeys, d, func(i int) string { return fmt.Sprintf("master %d | %d", i+1, of[i]) }); err != nil {
		return err
	}
	if err := showServers(single.URL, []*redistest.Server{single}, clusterKeys, d, func(int) string { return "one Redis | 64" }); err != nil {
		return err
	}
	fmt.Printf("\nMeasured: the same with 1,000 keys, where a call to a cluster has few of them:\n\n")
	fmt.Print(serversHead)
	for _, s := range append(cluster.Nodes[:3:3], single) {
		s.Do("FLUSHALL", "SYNC")
	}
	if err := showServers(cluster.URL, cluster.Nodes, 1000, d, func(i int) string { return fmt.Sprintf("master %d | %d", i+1, of[i]) }); err != nil {
		return err
	}
	return showServers(single.URL, []*redistest.Server{single}, 1000, d, func(int) string { return "one Redis | 64" })
}

// showServers prints a row for each server.
func showServers(url string, servers []*redistest.Server, keys int, d time.Duration, name func(int) string) error {
	all, err := start(windows, url, clusterNodes, idle)
	if err != nil {
		return err
	}
	drive(all, keys, idle.rate, 3*time.Second)
	before := make([]usage, len(servers))
	for i, s := range servers {
		s.Do("CONFIG", "RESETSTAT")
		before[i] = usageOf(s)
	}
	begun := time.Now()
	drive(all, keys, idle.rate, d)
	seconds := time.Since(begun).Seconds()
	held, total := make([]float64, len(servers)), 0.0
	for i, s := range servers {
		held[i] = float64(s.Do("DBSIZE").(int64))
		total += held[i]
	}
	for i, s := range servers {
		cpu := usageOf(s).since(before[i]).cpu
		messages, calls := float64(s.Calls("hset")), float64(s.Calls("evalsha"))
		if messages == 0 {
			return fmt.Errorf("%s: no messages", name(i))
		}
		fmt.Printf("| %s | %.0f, %.1f %% | %.0f | %.0f, of %.0f messages | %.1f %%, %.1f µs a message |\n", name(i), held[i], held[i]/total*100, messages/seconds,
			calls/seconds, messages/calls, cpu/seconds*100, cpu/messages*1e6)
	}
	for _, n := range all {
		n.close()
	}
	return nil
}

// showThroughput syncs as fast as it goes, through one Redis and through three masters.
func showThroughput(t *outside.T, d time.Duration) error {
	single, cluster := redistest.Start(t), redistest.StartCluster(t, 3)
	fmt.Printf("\nMeasured: syncing as fast as it goes, %d nodes with %s keys at `sync_rate 20ms`:\n\n", clusterNodes, short(clusterKeys))
	fmt.Printf("| | messages a second | CPU of all servers | messages a second of CPU of the busiest server |\n|---|---|---|---|\n")
	for _, c := range []struct {
		name    string
		url     string
		servers []*redistest.Server
	}{{"one Redis", single.URL, []*redistest.Server{single}}, {"three masters", cluster.URL, cluster.Nodes}} {
		o := idle
		o.rate = 20 * time.Millisecond
		all, err := start(windows, c.url, clusterNodes, o)
		if err != nil {
			return err
		}
		flood(all, 2*time.Second)
		before := make([]usage, len(c.servers))
		for i, s := range c.servers {
			before[i] = usageOf(s)
		}
		sent, begun := synced(all), time.Now()
		flood(all, d)
		sent, seconds := synced(all)-sent, time.Since(begun).Seconds()
		sum, busiest := 0.0, 0.0
		for i, s := range c.servers {
			cpu := usageOf(s).since(before[i]).cpu
			sum, busiest = sum+cpu, max(busiest, cpu)
		}
		fmt.Printf("| %s | %s | %.0f %% of a core | %s |\n", c.name, short(sent/seconds), sum/seconds*100, short(sent/busiest))
		for _, n := range all {
			n.close()
		}
	}
	return nil
}

// flood touches all keys every 20 ms.
func flood(all []*node, d time.Duration) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		for _, n := range all {
			n.touch(clusterKeys)
		}
	}
}
