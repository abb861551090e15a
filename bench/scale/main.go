// Command scale measures what a sync costs Redis and says what larger deployments would: it
// prints the tables of docs/internals/scale.md. Each says whether it is measured or arithmetic. It
// needs redis-server. Run it in bench:
//
//	go run ./scale             about four minutes
//	go run ./scale -short      less, to see that it works
//	go run ./scale -only far   a Redis that is far away, in a minute
//	go run ./scale -only nodes as many as a thousand of them, in five minutes
package main

import (
	"flag"
	"time"

	"github.com/caddy-tide/ratelimit/bench/outside"
)

func main() {
	d := flag.Duration("duration", 5*time.Second, "how long each figure is measured")
	quick := flag.Bool("short", false, "as short as it goes")
	only := flag.String("only", "", "a part only: units, clusters, far or nodes")
	asks := flag.String("ask", "", "the URL of a Redis to ask as a strict zone does: prints the p99 in milliseconds")
	flag.Parse()
	if *asks != "" {
		outside.Run(func(*outside.T) error { return askStrictly(*asks, *d) })
		return
	}
	if *quick {
		*d = time.Second
	}
	outside.Run(func(t *outside.T) error { return run(t, *d, *only) })
}

func run(t *outside.T, d time.Duration, only string) error {
	if only == "far" {
		return showFar(t, d)
	}
	if only == "nodes" {
		return showCrowd(t, d)
	}
	if only != "clusters" {
		if err := reckon(t, d); err != nil {
			return err
		}
	}
	if only == "units" {
		return nil
	}
	for _, show := range []func(*outside.T, time.Duration) error{showCluster, showThroughput, showHot, showStrict} {
		if err := show(t, d); err != nil {
			return err
		}
	}
	return nil
}

// reckon measures what a message costs and says what that makes of deployments.
func reckon(t *outside.T, d time.Duration) error {
	ofWindows, err := measureUnits(t, windows, d)
	if err != nil {
		return err
	}
	if _, err := measureUnits(t, buckets, d); err != nil {
		return err
	}
	if err := showRolls(t, d); err != nil {
		return err
	}
	ofWindows = average(ofWindows)
	writeCosts(ofWindows)
	writeFull(ofWindows)
	writeSlots(ofWindows)
	return nil
}

func measureUnits(t *outside.T, k kind, d time.Duration) (all []unit, err error) {
	for _, nodes := range []int{1, 2, 10, 50} {
		u, err := measureUnit(t, k, nodes, d)
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	writeUnits(k, all)
	return all, nil
}
