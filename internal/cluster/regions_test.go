//go:build chaos

package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// holdsPush reports whether a link holds counts back that the region's relay has read.
func (r *realRegion) holdsPush() bool {
	for _, link := range r.links {
		for _, piece := range link.Pieces() {
			if bytes.Contains(piece, []byte("~"+r.name+"\r\n")) {
				return true
			}
		}
	}
	return false
}

// linkTimeout is how long a relay waits for an answer of another region.
const linkTimeout = 3 * time.Second

// A relay that dies when it has read something and not told it leaves it to the next one, without a
// request.
func TestRelayIsKilledBeforeItTells(t *testing.T) {
	t.Parallel()
	all, c := startRegions(t, 2, 1, 0, zones(zone("z", "key all", "limit 1000/"+far))), client(t, 4)
	here := all[0]
	relay := here.nodes[0]
	next := start(t, 1, here.text).Nodes
	admit(t, c, here.nodes, "z", 10)
	n := 10
	eventually(t, "a push is held", func() error {
		cut(all, faultproxy.None)
		awaitEqual(t, all, "z", n) // so there is a connection
		cut(all, faultproxy.Hold)
		admit(t, c, next, "z", 15)
		n += 15
		if !redistest.Poll(linkTimeout, here.holdsPush) {
			return errors.New("none is")
		}
		return nil
	})
	if got := total(t, all[1].redis, "z"); got != n-15 {
		t.Errorf("the other region has been told of %d, want %d", got, n-15)
	}
	relay.Kill()
	cut(all, faultproxy.None)
	awaitEqual(t, all, "z", n)
}

// A Redis that forgets learns all again: its own nodes send theirs, and the other region what it
// had told, also what has not been counted since.
func TestRedisOfARegionForgets(t *testing.T) {
	t.Parallel()
	all, c := startRegions(t, 2, 1, 10*time.Millisecond, zones(zone("z", "key {query}", "limit 1000/"+far))), client(t, 4)
	n := 0
	for i, r := range all {
		for k := range 5 {
			n += 3
			if got := c.Burst(t.Context(), r.nodes, fmt.Sprintf("/z?k=%d", 10*i+k), 3, nil).Status(http.StatusOK); got != 3 {
				t.Fatalf("%d of 3 were admitted", got)
			}
		}
	}
	// A threshold of 1000/64/2 is 7 units: these keys are told to nobody.
	awaitTotal(t, all[0].redis, "z", n/2)
	for i, r := range all {
		for k := range 5 {
			n += 7
			c.Burst(t.Context(), r.nodes, fmt.Sprintf("/z?k=%d", 10*i+k), 7, nil)
		}
	}
	awaitEqual(t, all, "z", n)
	cut(all, faultproxy.Blackhole)
	all[1].redis.Do("FLUSHALL")
	awaitTotal(t, all[1].redis, "z", n/2)
	cut(all, faultproxy.Reset)
	cut(all, faultproxy.None)
	awaitEqual(t, all, "z", n)
}

// One Redis under two names is found out: nothing is told, and counts stand.
func TestOneRedisUnderTwoNames(t *testing.T) {
	t.Parallel()
	r, c := redistest.Start(t), client(t, 4)
	text := config("regions {\n\there eu\n\tregion eu "+r.URL+"\n\tregion us "+r.URL+"\n}", zones(zone("z", "key all", "limit 1000/"+far)))
	nodes := start(t, 2, text).Nodes
	admit(t, c, nodes, "z", 50)
	awaitTotal(t, r, "z", 50)
	eventually(t, "it is logged", func() error {
		for _, n := range nodes {
			if len(n.Log.With(`belongs to region \"eu\"`)) > 0 {
				return nil
			}
		}
		return fmt.Errorf("no node has logged it")
	})
	awaitTotal(t, r, "z", 50)
	client := r.Client()
	defer client.Close()
	for key := range sums(t, r, "z") {
		for field := range client.HGetAll(t.Context(), key).Val() {
			if strings.HasPrefix(field, "~") {
				t.Errorf("%s has a field %s", key, field)
			}
		}
	}
}

// With on_loss divide each of two sides that don't hear of each other admits half of each limit,
// and what is known of the other side counts as well. Both admit the limit together.
func TestDividedRegions(t *testing.T) {
	t.Parallel()
	var parts []string
	algorithms := []string{"sliding_window", "token_bucket"}
	for _, algorithm := range algorithms {
		parts = append(parts, zone(algorithm, "key {query}", "limit 101/"+far, "algorithm "+algorithm))
	}
	all, c := startRegions(t, 2, 2, 10*time.Millisecond, zones(parts...), "on_loss divide"), client(t, 4)
	for _, algorithm := range algorithms {
		admit(t, c, all[0].nodes, algorithm, 30)
		awaitEqual(t, all, algorithm, 30)
	}
	probes := 0
	await := func(limit int) {
		t.Helper()
		eventually(t, fmt.Sprintf("each node enforces a limit of %d", limit), func() error {
			for _, r := range all {
				for _, n := range r.nodes {
					probes++
					if left := remaining(t, n, fmt.Sprintf("/%s?probe=%d", algorithms[0], probes)); left != limit-1 {
						return fmt.Errorf("node %d of %s leaves %d", n.Number, r.name, left)
					}
				}
			}
			return nil
		})
	}
	await(101)
	cut(all, faultproxy.Blackhole)
	await(50)
	spent := regexp.MustCompile(`\b\d+/30d +(\d+) `)
	for _, algorithm := range algorithms {
		for _, r := range all {
			// One node, as two would admit more in a flood. It has heard of the key with 31.
			admit(t, c, r.nodes[:1], algorithm, 1)
			eventually(t, "a node knows what was spent of a key", func() error {
				out, _ := command(t, r.nodes[0], "explain", "http://"+r.nodes[0].Addr+"/"+algorithm)
				if used := spent.FindStringSubmatch(out); used == nil || used[1] != "31" {
					return errors.New(out)
				}
				return nil
			})
			for path, want := range map[string]int{"/" + algorithm: 19, "/" + algorithm + "?other": 50} {
				admitted := c.Burst(t.Context(), r.nodes[:1], path, 120, nil).Status(http.StatusOK)
				if admitted != want {
					t.Errorf("a side has admitted %d at %s, want %d", admitted, path, want)
				}
			}
		}
	}
	cut(all, faultproxy.Reset)
	cut(all, faultproxy.None)
	await(101)
}

// remaining is what an answer to a request says is left.
func remaining(t *testing.T, node *cluster.Node, path string) (n int) {
	t.Helper()
	resp, err := http.Get("http://" + node.Addr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	left := regexp.MustCompile(`;r=(\d+)`).FindStringSubmatch(resp.Header.Get("RateLimit"))
	if left == nil {
		t.Fatalf("%s: %v", path, resp.Header)
	}
	n, _ = strconv.Atoi(left[1])
	return n
}

// Windows in strict mode are exact in a region, and count what the other one has told.
func TestStrictRegions(t *testing.T) {
	t.Parallel()
	all, c := startRegions(t, 2, 2, 10*time.Millisecond, zones(zone("z", "key all", "limit 300/"+far, "sync_rate strict"))), client(t, 8)
	admitted := 0
	send := func(r *realRegion, n, want int) {
		t.Helper()
		got := c.Burst(t.Context(), r.nodes, "/z", n, nil).Status(http.StatusOK)
		if admitted += got; got != want {
			t.Errorf("%d of %d were admitted, want %d", got, n, want)
		}
		awaitEqual(t, all, "z", admitted)
	}
	here, there := all[0], all[1]
	send(here, 40, 40)
	send(there, 60, 60)
	cut(all, faultproxy.Blackhole)
	for _, r := range all {
		admitted += c.Burst(t.Context(), r.nodes, "/z", 30, nil).Status(http.StatusOK)
		awaitTotal(t, r.redis, "z", 130)
	}
	cut(all, faultproxy.Reset)
	cut(all, faultproxy.None)
	awaitEqual(t, all, "z", 160)
	send(here, 400, 140)
	send(there, 50, 0)
}

// spend sends requests of a region to a zone until so many were admitted.
func spend(t *testing.T, c *cluster.Client, r *realRegion, zone string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d are admitted at %s in %s", n, zone, r.name), func() error {
		if n -= c.Burst(t.Context(), r.nodes, "/"+zone, n, nil).Status(http.StatusOK); n > 0 {
			return fmt.Errorf("%d were not", n)
		}
		return nil
	})
}

// What an operator changes in one region holds in all, and the answer says how many have been told.
func TestOperateRegions(t *testing.T) {
	t.Parallel()
	all, c := startRegions(t, 2, 2, 10*time.Millisecond, zones(
		zone("none", "limit 0/"+far), zone("window", "key all", "limit 100/"+far), zone("bucket", "key all", "limit 100/"+far, "algorithm token_bucket"),
		zone("strict", "key all", "limit 100/"+far, "sync_rate strict"),
	)), client(t, 4)
	here, there := all[0], all[1]
	await := func(want int) {
		t.Helper()
		eventually(t, fmt.Sprintf("all nodes answer %d", want), func() error {
			for _, n := range append(here.nodes, there.nodes...) {
				if got := get(t, n, "/none"); got != want {
					return fmt.Errorf("node %d answers %d", n.Number, got)
				}
			}
			return nil
		})
	}
	await(http.StatusTooManyRequests)
	doneAtLast(t, here.nodes[1], "none: not enforced on 2 of 2 nodes here, told to 1 of 1 regions, ends in 1h", "enforce none off")
	await(http.StatusOK)
	doneAtLast(t, there.nodes[0], "on 2 of 2 nodes here, told to 1 of 1 regions", "enforce none --remove")
	await(http.StatusTooManyRequests)
	for _, name := range []string{"window", "bucket", "strict"} {
		spend(t, c, here, name, 40)
		awaitEqual(t, all, name, 40)
		spend(t, c, there, name, 60)
		awaitEqual(t, all, name, 100)
		doneAtLast(t, here.nodes[0], "told to 1 of 1 regions", "reset "+name+" --all")
		spend(t, c, here, name, 40)
		// Nodes of the other region apply the reset within a second or so after it was told. What
		// one admits before that, as it has not heard of all 100, is forgiven as well.
		spend(t, c, there, name, 60)
		eventually(t, "both count the same after the reset", func() error {
			a, b, least := total(t, here.redis, name), total(t, there.redis, name), 200
			if name == "bucket" { // it drops what is forgiven and was not sent yet
				least = 141
			}
			if a != b || a < least || a > 200 {
				return fmt.Errorf("%d and %d", a, b)
			}
			return nil
		})
	}
	cut(all, faultproxy.Blackhole)
	out, code := command(t, here.nodes[0], "enforce", "none", "off")
	if code == 0 || !strings.Contains(out, "told to 0 of 1 regions") || !strings.Contains(out, "not told yet: r1") {
		t.Errorf("enforce with the other region cut off: exit code %d:\n%s", code, out)
	}
	cut(all, faultproxy.Reset)
	cut(all, faultproxy.None)
	await(http.StatusOK)
}

// A ban that begins in one region is told to the other one before that has a request. It holds
// there for as long, and a reset ends it in both. One that began while the other region was cut off
// is told afterwards.
func TestBansInRegions(t *testing.T) {
	t.Parallel()
	options := "key {query}\nlimit 20/" + far + "\nban 1h after 10/1h"
	all, c := startRegions(t, 2, 2, 10*time.Millisecond, zones(zone("z", options), zone("cut", options), zone("strict", options, "sync_rate strict"))), client(t, 4)
	here, there := all[0], all[1]
	told := func(name string) {
		t.Helper()
		eventually(t, "the other region has the ban", func() error {
			keys := there.redis.Do("KEYS", "*:"+name+":ban:*").([]any)
			if len(keys) != 1 {
				return fmt.Errorf("%d keys", len(keys))
			}
			if rest := time.Duration(there.redis.Do("PTTL", keys[0]).(int64)) * time.Millisecond; rest > time.Hour || rest < 50*time.Minute {
				t.Errorf("%v of a ban of an hour are left there", rest)
			}
			return nil
		})
	}
	banned := func(r *realRegion, path string) {
		t.Helper()
		eventually(t, "it is banned in "+r.name, func() error {
			out, _ := command(t, r.nodes[1], "explain", "http://"+r.nodes[1].Addr+path)
			if get(t, r.nodes[1], path) != http.StatusTooManyRequests || !strings.Contains(out, "banned") {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
	}
	for _, name := range []string{"z", "strict"} {
		path := "/" + name + "?a"
		c.Burst(t.Context(), here.nodes[:1], path, 60, nil)
		told(name) // with requests there it might ban by what it is told of denials
		banned(here, path)
		banned(there, path)
		doneAtLast(t, there.nodes[0], "told to 1 of 1 regions", "reset "+name+" --all")
		eventually(t, "the ban has ended in both", func() error {
			for _, r := range all {
				if got := get(t, r.nodes[0], path); got != http.StatusOK {
					return fmt.Errorf("%s answers %d", r.name, got)
				}
			}
			return nil
		})
	}
	cut(all, faultproxy.Blackhole)
	c.Burst(t.Context(), here.nodes[:1], "/cut?b", 60, nil)
	banned(here, "/cut?b")
	cut(all, faultproxy.Reset)
	cut(all, faultproxy.None)
	told("cut")
	banned(there, "/cut?b")
}
