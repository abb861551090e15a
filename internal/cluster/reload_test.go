//go:build chaos

package cluster_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A reload that fails after the app has started sends nothing to the Redis of the failed
// configuration.
func TestFailedReloadReachesNoOtherRedis(t *testing.T) {
	t.Parallel()
	r, other := redistest.Start(t), redistest.Start(t)
	taken := takenPort(t)
	site := zones(zone("fixed", wide, "algorithm fixed_window"))
	c := start(t, 1, config("redis "+r.URL+"\nsync_rate 100ms", site))
	admit(t, client(t, 8), c.Nodes, "fixed", 40)
	failing := config("redis "+other.URL+"\nsync_rate 100ms", site) +
		fmt.Sprintf("http://:%d {\n\trespond no\n}\n", taken)
	for i := range 40 { // apps start in a random order
		if err := c.Nodes[0].Reload(t.Context(), failing); err == nil {
			t.Fatal("a reload with a taken port succeeded")
		}
		if got := sums(t, other, "fixed"); len(got) > 0 {
			t.Fatalf("after %d failed reloads the other Redis holds %v", i+1, got)
		}
	}
}

// Reloads under load lose and double no count, and leave no goroutine behind.
func TestReloadsUnderLoad(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	site := func(limit int) string {
		return config(slowRedis(r)+"\nsync_rate 100ms", zones(
			zone("fixed", fmt.Sprintf("limit %d/%s", limit, far), "algorithm fixed_window"),
			zone("bucket", fmt.Sprintf("limit %d/%s", limit, far), "algorithm token_bucket"),
			zone("strict", fmt.Sprintf("limit %d/%s", limit, far), "algorithm fixed_window", "sync_rate 0"),
		))
	}
	c := start(t, 1, site(1000000))
	n := c.Nodes[0]
	all := []string{"fixed", "bucket", "strict"}
	warm := client(t, 4)
	for _, z := range all {
		admit(t, warm, c.Nodes, z, 8)
	}
	for i := range 2 { // what a reload leaves behind once is no leak
		reload(t, n, site(1000001+i))
	}
	warm.Close()
	before := goroutines(t, n)

	requests := client(t, 8)
	var tallies []*cluster.Tally
	var stops []func()
	for _, z := range all {
		tally, stop := load(t, requests, c.Nodes, z, 60)
		tallies, stops = append(tallies, tally), append(stops, stop)
	}
	for i := range 20 {
		awaitAnswers(t, tallies[i%len(all)], 2)
		reload(t, n, site(1000000-i))
	}
	for i, z := range all {
		stops[i]()
		errors, first := tallies[i].Errors()
		if tallies[i].Denied() != 0 || errors > 0 && first == nil {
			t.Errorf("zone %s: %d requests were denied", z, tallies[i].Denied())
		}
		awaitSent(t, c.Nodes, z)
		least := 8 + tallies[i].Admitted()
		eventually(t, "redis counts all of zone "+z, func() error {
			// A request whose connection a reload broke may have been counted: %d of them.
			if got := total(t, r, z); got < least || got > least+errors {
				return fmt.Errorf("it counts %d, want %d to %d", got, least, least+errors)
			}
			return nil
		})
	}
	requests.Close()
	eventually(t, "there are no more goroutines than before 20 reloads", func() error {
		if now := goroutines(t, n); now > before {
			_, profile, _ := n.Goroutines(t.Context())
			return fmt.Errorf("%d, before %d:\n%s", now, before, profile)
		}
		return nil
	})
}

// leastGoroutines is the least number of a node's goroutines in a while. Where a fault has it try
// to connect all the time, those that do so come and go, and on a busy machine the number never
// stays the same.
func leastGoroutines(t *testing.T, n *cluster.Node) int {
	t.Helper()
	least, asked := math.MaxInt, 0
	eventually(t, "a node returns its goroutines forty times", func() error {
		now, _, err := n.Goroutines(t.Context())
		if err != nil {
			return err
		}
		if least, asked = min(least, now), asked+1; asked < 40 {
			return fmt.Errorf("%d times", asked)
		}
		return nil
	})
	return least
}

// goroutines waits until the number of a node's goroutines stays the same, and returns it.
func goroutines(t *testing.T, n *cluster.Node) int {
	t.Helper()
	last, same := 0, 0
	eventually(t, "the number of goroutines stays the same", func() error {
		now, _, err := n.Goroutines(t.Context())
		if err != nil {
			return err
		}
		if same++; now != last {
			last, same = now, 0
		}
		if same < 40 {
			return fmt.Errorf("%d", now)
		}
		return nil
	})
	return last
}

// A changed limit applies at once to what is spent: 15 after 10 with 10 spent leaves 5, and 5
// leaves none.
func TestChangedLimitAtOnce(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	algorithms := []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"}
	rates := []string{"local", "1s", "strict"}
	site := func(limit int) string {
		var parts []string
		for _, algorithm := range algorithms {
			for _, rate := range rates {
				parts = append(parts, zone(algorithm+"-"+rate, fmt.Sprintf("limit %d/%s", limit, far), "algorithm "+algorithm, "sync_rate "+rate))
			}
		}
		return config(slowRedis(r), zones(parts...))
	}
	c := start(t, 1, site(10))
	requests := client(t, 4)
	left := func(limit, want int) {
		t.Helper()
		for _, algorithm := range algorithms {
			for _, rate := range rates {
				name := algorithm + "-" + rate
				if got := requests.Burst(t.Context(), c.Nodes, "/"+name, 20, nil).Admitted(); got != want {
					t.Errorf("zone %s at limit %d: %d of 20 requests were admitted, want %d", name, limit, got, want)
				}
			}
		}
	}
	left(10, 10)
	reload(t, c.Nodes[0], site(15))
	left(15, 5)
	reload(t, c.Nodes[0], site(5))
	left(5, 0)
	reload(t, c.Nodes[0], site(18))
	left(18, 3)
}

// A changed Redis has all counts at once, those of the time before as well, and the former one gets
// no more.
func TestChangedRedisAtOnce(t *testing.T) {
	t.Parallel()
	from, to := redistest.Start(t), redistest.Start(t)
	all := []string{"fixed_window", "sliding_window", "token_bucket", "gcra", "sliding_log"}
	var parts []string
	for _, algorithm := range all {
		parts = append(parts, zone(algorithm, wide, "algorithm "+algorithm))
	}
	site := func(r *redistest.Server) string { return config("redis "+r.URL+"\nsync_rate 100ms", zones(parts...)) }
	c := start(t, 2, site(from))
	requests := client(t, 8)
	for _, z := range all {
		admit(t, requests, c.Nodes, z, 40)
	}
	tally, stop := load(t, requests, c.Nodes, all[0], 100)
	awaitAnswers(t, tally, 10)
	for _, z := range all[1:] {
		awaitSent(t, c.Nodes, z)
	}
	if err := c.Reload(t.Context(), site(to)); err != nil {
		t.Fatal(err)
	}
	for _, z := range all[1:] {
		awaitTotal(t, to, z, 40)
		admit(t, requests, c.Nodes, z, 20)
		awaitTotal(t, to, z, 60)
		awaitTotal(t, from, z, 40)
	}
	stop()
	// otherwise nobody knows whether those were counted
	if errors, _ := tally.Errors(); errors == 0 {
		awaitTotal(t, to, all[0], 40+tally.Admitted())
	}
	for _, n := range c.Nodes {
		awaitUp(t, n)
	}
}

// Between sync_rate 0 and above the counts of windows go on in both directions.
func TestWindowsGoOnBetweenStrictAndNot(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	all := []string{"fixed_window", "sliding_window"}
	site := func(rate string) string {
		var parts []string
		for _, algorithm := range all {
			parts = append(parts, zone(algorithm, "limit 100/"+far, "algorithm "+algorithm))
		}
		return config(slowRedis(r)+"\nsync_rate "+rate, zones(parts...))
	}
	c := start(t, 2, site("strict"))
	requests := client(t, 8)
	for _, z := range all {
		admit(t, requests, c.Nodes, z, 30)
	}
	if err := c.Reload(t.Context(), site("100ms")); err != nil {
		t.Fatal(err)
	}
	for _, z := range all {
		admit(t, requests, c.Nodes, z, 20)
		awaitTotal(t, r, z, 50)
		awaitSent(t, c.Nodes, z)
		admit(t, requests, c.Nodes[:1], z, 1)
		awaitTotal(t, r, z, 51) // what Redis doesn't know yet when it begins to decide comes on top
		awaitKnown(t, c.Nodes[:1], z, 51)
	}
	if err := c.Reload(t.Context(), site("strict")); err != nil {
		t.Fatal(err)
	}
	for _, z := range all {
		if got := requests.Burst(t.Context(), c.Nodes, "/"+z, 200, nil).Admitted(); got != 49 {
			t.Errorf("zone %s: after 51 of 100, %d more were admitted, want 49", z, got)
		}
		awaitTotal(t, r, z, 100)
	}
}
