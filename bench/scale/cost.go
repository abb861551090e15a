package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

const (
	full  = 0.7 // of a core: beyond that, Redis answers late
	batch = 100 // messages in a call, see internal/cycle/cycle.go
)

// A load is what a deployment asks of Redis.
type load struct {
	messages float64 // a second
	cores    float64
	in, out  float64 // bytes a second
	memory   float64 // bytes
}

// window is what limits are reckoned with.
const window = time.Minute

// perKey is how many messages a busy key of one node costs in an interval, on average over a
// window. One; two more at once when a window begins, for it and the one before; and one for the
// one before in each sync until that is final, which it is in the first that ends two intervals
// and a second after it.
func perKey(window, rate time.Duration) float64 {
	const early = 2
	asks := float64(2*rate+time.Second)/float64(rate) + 1
	return 1 + (early+asks)*float64(rate)/float64(window)
}

// cost is arithmetic: keys that each have requests on all of u.nodes nodes in each interval.
func cost(u unit, keys float64, rate time.Duration) load {
	m := float64(u.nodes) * keys * perKey(window, rate) / rate.Seconds()
	return load{m, m * u.cpu, m * u.in, m * u.out, keys * hashesOf(window, rate) * u.hash}
}

// most is how many such keys fill a Redis, or several, of which the busiest has a share of the
// keys.
func most(u unit, rate time.Duration, share float64) float64 {
	return full / cost(u, 1, rate).cores / share
}

// hashesOf says how many epochs of a key that is always active are in Redis: one begins every
// window, and each expires a while after its first count. It is what docs/internals/sync.md says of
// lifetimes.
func hashesOf(window, rate time.Duration) float64 {
	lifetime := 4*window + rate + time.Minute
	return math.Ceil(float64(lifetime) / float64(window))
}

var (
	rates  = []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second}
	counts = []float64{1e3, 1e5, 1e6}
)

// average is what is reckoned with: CPU time and bytes hardly depend on how many nodes share a key,
// so their means are taken; memory does.
func average(all []unit) []unit {
	var mean unit
	for _, u := range all {
		n := float64(len(all))
		mean.cpu, mean.in, mean.out = mean.cpu+u.cpu/n, mean.in+u.in/n, mean.out+u.out/n
	}
	means := make([]unit, len(all))
	for i, u := range all {
		means[i] = unit{nodes: u.nodes, cpu: mean.cpu, in: mean.in, out: mean.out, hash: u.hash}
	}
	return means
}

// writeCosts prints what N nodes and K keys cost, in a table for each N.
func writeCosts(all []unit) {
	fmt.Printf("\nArithmetic, with %.1f µs of CPU a message: N nodes, K keys that each have requests on every node in every interval, limits of a minute. Calls are messages / %d, and at least one of each node in each interval:\n", all[0].cpu*1e6, batch)
	for _, u := range all {
		if u.nodes == 1 {
			continue
		}
		fmt.Printf("\n%d nodes:\n\n", u.nodes)
		fmt.Printf("| K | `sync_rate` | messages a second | to and from Redis, a second | Redis CPU | Redis memory |\n|---|---|---|---|---|---|\n")
		for _, k := range counts {
			for _, r := range rates {
				l := cost(u, k, r)
				fmt.Printf("| %s | %v | %s | %s, %s | %s | %s |\n", short(k), r, short(l.messages), bytes(l.in), bytes(l.out), cores(l.cores), bytes(l.memory))
			}
		}
	}
}

// writeFull prints how many keys fill Redis.
func writeFull(all []unit) {
	fmt.Printf("\nArithmetic: keys that fill one Redis, taken to be full at %.0f %% of a core:\n\n| N |", full*100)
	for _, r := range rates {
		fmt.Printf(" `sync_rate %v` |", r)
	}
	fmt.Printf("\n|---|%s\n", strings.Repeat("---|", len(rates)))
	for _, u := range all {
		fmt.Printf("| %d |", u.nodes)
		for _, r := range rates {
			fmt.Printf(" %s |", short(most(u, r, 1)))
		}
		fmt.Printf("\n")
	}
}

// short is a number with two digits that count.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return digits(v/1e6) + "M"
	case v >= 1e3:
		return digits(v/1e3) + "k"
	}
	return digits(v)
}

func bytes(v float64) string {
	switch {
	case v >= 1e9:
		return digits(v/1e9) + " GB"
	case v >= 1e6:
		return digits(v/1e6) + " MB"
	}
	return digits(v/1e3) + " kB"
}

// cores marks what is more than one Redis can do.
func cores(v float64) string {
	if v > full {
		return "**" + digits(v) + " cores**"
	}
	return digits(v*100) + " % of a core"
}

// digits rounds to two digits that count.
func digits(v float64) string {
	if v == 0 {
		return "0"
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-1)
	v = math.Round(v/unit) * unit
	return fmt.Sprintf("%.*f", max(0, int(-math.Floor(math.Log10(math.Abs(v)))+1)), v)
}
