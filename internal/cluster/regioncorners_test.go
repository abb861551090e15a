//go:build chaos

package cluster_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// Three nodes get regions one after the other, under load in both regions: no Redis ever counts
// more than was admitted, nodes that don't know of regions count what is told, and in the end both
// have all.
func TestRolloutOfRegions(t *testing.T) {
	t.Parallel()
	eu, us, c := redistest.Start(t), redistest.Start(t), client(t, 8)
	names := []string{"window", "bucket", "strict"}
	site := zones(zone("window", "key all", "limit 3000/"+far), zone("bucket", "key all", "limit 3000/"+far, "algorithm token_bucket"),
		zone("strict", "key all", "limit 3000/"+far, "sync_rate strict"))
	in := func(here string) string {
		return config("regions {\n\there "+here+"\n\tregion eu "+eu.URL+"\n\tregion us "+us.URL+"\n}", site)
	}
	one := config("redis "+eu.URL, site)
	nodes, others := start(t, 3, one).Nodes, start(t, 1, in("us")).Nodes
	var tallies []*cluster.Tally
	var stops []func()
	for _, name := range names {
		for _, of := range [][]*cluster.Node{nodes, others} {
			tally, stop := load(t, c, of, name, 20)
			tallies, stops = append(tallies, tally), append(stops, stop)
		}
	}
	admitted := func(i int) int { return tallies[2*i].Admitted() + tallies[2*i+1].Admitted() }
	check := func() {
		t.Helper()
		for i, name := range names {
			for _, r := range []*redistest.Server{eu, us} {
				counted := total(t, r, name)
				// What is under way is counted before it is answered.
				eventually(t, "no more is counted than was admitted", func() error {
					if most := admitted(i); counted > most {
						return fmt.Errorf("zone %s: %d are counted, %d were admitted", name, counted, most)
					}
					return nil
				})
			}
		}
	}
	step := func() {
		t.Helper()
		for range 4 {
			awaitAnswers(t, tallies[0], 10)
			check()
		}
	}
	step()
	for _, n := range nodes {
		reload(t, n, in("eu"))
		step()
	}
	for _, stop := range stops {
		stop()
	}
	// What only nodes without regions have counted is told with the next request.
	for i, name := range names {
		admit(t, c, nodes[:1], name, 1)
		for _, r := range []*redistest.Server{eu, us} {
			awaitTotal(t, r, name, admitted(i)+1)
		}
	}
}

// With on_loss divide a side enforces its part of the limit also for keys that are in the sketch,
// of a limit with a reserve, and in a process that starts while the other region is lost.
func TestDividedRegionsInCorners(t *testing.T) {
	t.Parallel()
	options := "key {query}\nlimit 100/" + far
	site := "@paying header X-Plan paid\n" + zones(zone("probe", options), zone("kept", options), zone("reserve", options, "reserve @paying 20%"), zone("full", options, "max_keys 2"))
	all := startRegionsWith(t, 2, 1, 10*time.Millisecond, "persist "+filepath.Join(t.TempDir(), "{{.Admin}}"), site, "on_loss divide")
	c := client(t, 4)
	here := all[0].nodes
	probes := 0
	await := func(left int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d are left of a new key", left), func() error {
			probes++
			if got := remaining(t, here[0], fmt.Sprintf("/probe?p=%d", probes)); got != left {
				return fmt.Errorf("%d", got)
			}
			return nil
		})
	}
	burst := func(path string, n int, change func(*http.Request)) int {
		return c.Burst(t.Context(), here, path, n, change).Status(http.StatusOK)
	}
	await(99)
	admit(t, c, here, "kept?k", 30)
	for i := range 2 {
		burst(fmt.Sprintf("/full?k%d", i), 1, nil)
	}
	awaitTotal(t, all[1].redis, "kept", 30)
	cut(all, faultproxy.Blackhole)
	await(49)
	if got := burst("/reserve?k", 90, nil); got != 40 {
		t.Errorf("%d of those who don't pay were admitted, want 40 of 50", got)
	}
	if got := burst("/reserve?k", 30, pays); got != 10 {
		t.Errorf("%d of those who pay were admitted after them, want 10", got)
	}
	if got := burst("/full?beyond", 90, nil); got > 50 || got < 40 {
		t.Errorf("%d were admitted of a key in the sketch, want 50 at most", got)
	}
	// A process that starts while the other region is lost goes by its part as soon as it has heard
	// of nobody for as long.
	if err := here[0].Stop(); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := here[0].Start(t.Context(), all[0].text); err != nil {
		t.Fatal(err)
	}
	await(49)
	// What the earlier process admitted is in Redis, which answers after the key's first request.
	admit(t, c, here, "kept?k", 1)
	awaitKnown(t, here, "kept", 31)
	if got := burst("/kept?k", 90, nil); got != 19 {
		t.Errorf("%d were admitted of a key that had 31, want 19", got)
	}
	cut(all, faultproxy.Reset)
	cut(all, faultproxy.None)
	await(99)
}

// Beyond max_keys a key is counted on its node alone, in each region. What has a counter is told,
// also by nodes with limits that differ.
func TestRegionsWithMaxKeysAndUnequalLimits(t *testing.T) {
	t.Parallel()
	site := zones(zone("z", "key {query}", "limit {{.Node}}00/"+far, "max_keys 3"))
	all, c := startRegions(t, 2, 3, 10*time.Millisecond, site), client(t, 4)
	sent := 0
	for _, r := range all {
		for _, n := range r.nodes {
			for _, key := range []string{"a", "b", "c"} {
				admit(t, c, []*cluster.Node{n}, "z?"+key, 5)
				sent += 5
			}
		}
	}
	awaitEqual(t, all, "z", sent)
	beyond := 0
	for _, r := range all {
		beyond += c.Burst(t.Context(), r.nodes[:1], "/z?d", 150, nil).Status(http.StatusOK)
	}
	if beyond > 200 || beyond == 0 {
		t.Errorf("%d were admitted of a key beyond max_keys on two nodes with a limit of 100", beyond)
	}
	// Each node asks what the others have spent with its next request.
	var nodes []*cluster.Node
	for _, r := range all {
		nodes = append(nodes, r.nodes...)
	}
	for range 2 {
		admit(t, c, nodes, "z?a", len(nodes))
		sent += len(nodes)
		awaitEqual(t, all, "z", sent)
	}
	for i, n := range nodes {
		want := regexp.MustCompile(fmt.Sprintf(`\b%d00/30d +(\d+) `, n.Number))
		eventually(t, "a node counts what all have spent against its own limit", func() error {
			out, _ := command(t, n, "explain", "http://"+n.Addr+"/z?a")
			if used := want.FindStringSubmatch(out); used == nil || used[1] < "36" || used[1] > "42" || len(used[1]) != 2 {
				return fmt.Errorf("node %d of all: %s", i+1, out)
			}
			return nil
		})
	}
}

// A reload while a link is silent loses nothing: one with another limit, and one with another way
// to the other region, which works.
func TestReloadWithASilentLink(t *testing.T) {
	t.Parallel()
	all, c := startRegions(t, 2, 2, 10*time.Millisecond, zones(zone("z", "key all", "limit 1000/"+far))), client(t, 4)
	here := all[0]
	n := 0
	send := func(r *realRegion, requests int) {
		t.Helper()
		admit(t, c, r.nodes, "z", requests)
		n += requests
	}
	send(here, 10)
	send(all[1], 10)
	awaitEqual(t, all, "z", n)
	cut(all, faultproxy.Blackhole)
	send(here, 20)
	awaitTotal(t, here.redis, "z", n)
	for _, text := range []string{
		strings.Replace(here.text, "limit 1000/", "limit 900/", 1),
		strings.Replace(here.text, here.links[0].Addr, faultproxy.Start(t, all[1].redis.Addr).Addr, 1),
	} {
		for _, node := range here.nodes {
			reload(t, node, text)
		}
		send(here, 5)
		awaitTotal(t, here.redis, "z", n)
	}
	awaitTotal(t, all[1].redis, "z", n)
	cut(all, faultproxy.Reset)
	cut(all, faultproxy.None)
	send(all[1], 5)
	awaitEqual(t, all, "z", n)
}
