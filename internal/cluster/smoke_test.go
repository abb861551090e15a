package cluster_test

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A node that gets a request for a key hears what all nodes have counted, also when it had none for
// a long time.
func TestTotalReachesEveryNode(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	all := []string{"fixed_window", "sliding_window", "token_bucket", "gcra", "sliding_log"}
	var parts []string
	for _, algorithm := range all {
		parts = append(parts, zone(algorithm, wide, "algorithm "+algorithm))
	}
	c := start(t, 3, config("redis "+r.URL+"\nsync_rate 200ms", zones(parts...)))
	requests := client(t, 8)
	for _, algorithm := range all {
		admit(t, requests, c.Nodes, algorithm, 90)
	}
	for _, algorithm := range all {
		awaitTotal(t, r, algorithm, 90)
		for i := range c.Nodes {
			asked := c.Nodes[i : i+1]
			admit(t, requests, asked, algorithm, 1)
			awaitKnown(t, asked, algorithm, 91+i)
			awaitTotal(t, r, algorithm, 91+i)
		}
	}
}

// What a node has sent outlives it, and it takes the total up again when it is back.
func TestKilledNodeKeepsItsCounts(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	caddyfile := config("redis "+r.URL+"\nsync_rate 100ms", zones(
		zone("fixed", "limit 100/"+far, "algorithm fixed_window"),
		zone("bucket", "limit 100/"+far, "algorithm token_bucket"),
	))
	c := start(t, 3, caddyfile)
	requests := client(t, 4)
	for _, z := range []string{"fixed", "bucket"} {
		admit(t, requests, c.Nodes, z, 60)
		awaitSent(t, c.Nodes, z)
	}
	c.Nodes[2].Kill()
	for _, z := range []string{"fixed", "bucket"} {
		admit(t, requests, c.Nodes[:2], z, 2)
		awaitSent(t, c.Nodes[:2], z)
		admit(t, requests, c.Nodes[:1], z, 1)
		awaitKnown(t, c.Nodes[:1], z, 63)
	}
	if err := c.Nodes[2].Start(t.Context(), caddyfile); err != nil {
		t.Fatal(err)
	}
	for _, z := range []string{"fixed", "bucket"} {
		admit(t, requests, c.Nodes[2:], z, 1)
		awaitKnown(t, c.Nodes[2:], z, 64)
		// What the limit leaves of the sum of all processes can be had, though not all at once: the
		// node estimates what it can't see yet.
		left := 36
		eventually(t, "all that is left is admitted", func() error {
			left -= requests.Burst(t.Context(), c.Nodes[2:], "/"+z, 10, nil).Admitted()
			if left > 0 {
				return fmt.Errorf("%d are left", left)
			}
			return nil
		})
		if left += -requests.Burst(t.Context(), c.Nodes[2:], "/"+z, 20, nil).Admitted(); left != 0 {
			t.Errorf("the node that was killed admitted %d more than the limit in zone %s", -left, z)
		}
		awaitTotal(t, r, z, 100)
	}
}

// A Redis that lost everything has it again from the nodes, and none is lost of the requests in
// between.
func TestFlushedRedisIsFilledAgain(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	c := start(t, 3, config("redis "+r.URL+"\nsync_rate 100ms", zones(
		zone("fixed", "limit 100000/"+far, "algorithm fixed_window"), zone("bucket", "limit 100000/"+far, "algorithm gcra"))))
	requests := client(t, 4)
	for _, z := range []string{"fixed", "bucket"} {
		admit(t, requests, c.Nodes, z, 90)
		awaitSent(t, c.Nodes, z)
		awaitTotal(t, r, z, 90)
	}
	r.Do("FLUSHALL")
	for _, z := range []string{"fixed", "bucket"} {
		awaitTotal(t, r, z, 90)
		admit(t, requests, c.Nodes, z, 30)
		awaitTotal(t, r, z, 120)
	}
	for _, n := range c.Nodes {
		eventually(t, "a node has logged the loss, once", func() error {
			if lines := n.Log.With("redis has lost counts"); len(lines) != 1 {
				return fmt.Errorf("node %d wrote %d lines: %q", n.Number, len(lines), lines)
			}
			return nil
		})
	}
}

// A node that gets a SIGTERM sends what it has not sent yet.
func TestTerminatedNodeSendsItsCounts(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	all := []string{"fixed_window", "sliding_window", "token_bucket", "gcra", "sliding_log", "leaky_bucket"}
	var parts []string
	for _, algorithm := range all {
		options := []string{"limit 1000000/30d", "algorithm " + algorithm, "early_sync off"}
		if algorithm == "leaky_bucket" {
			options = append(options, "queue 1000")
		}
		parts = append(parts, zone(algorithm, options...))
	}
	c := start(t, 2, config("redis "+r.URL+"\nsync_rate 1h", zones(parts...)))
	awaitFirstCycle(t, c.Nodes)
	requests := client(t, 4)
	for _, algorithm := range all {
		admit(t, requests, c.Nodes, algorithm, 30)
	}
	for _, algorithm := range all {
		if got := total(t, r, algorithm); got != 0 {
			t.Errorf("redis counts %d requests of zone %s an hour before the second sync cycle, want none", got, algorithm)
		}
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, algorithm := range all {
		if got := total(t, r, algorithm); got != 30 {
			t.Errorf("after SIGTERM redis counts %d requests of zone %s, want 30", got, algorithm)
		}
	}
}

// Replies that are lost and messages that arrive twice or late leave the count in Redis exact.
func TestLostRepliesAndLateDuplicates(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	f := &faulty{t: t, r: r, proxy: faultproxy.Start(t, r.Addr), zones: []string{"fixed", "bucket"}}
	c := start(t, 2, config("redis redis://"+f.proxy.Addr+"\nsync_rate 100ms", zones(
		zone("fixed", "limit 100000/"+far, "algorithm fixed_window"), zone("bucket", "limit 100000/"+far, "algorithm token_bucket"))))
	requests := client(t, 4)
	f.spend = func() {
		t.Helper()
		for _, z := range f.zones {
			admit(t, requests, c.Nodes, z, 20)
		}
		f.spent += 20
	}
	f.spend()
	f.counted()
	f.loseReplies()
	f.deliverLate()
	f.spend()
	f.counted()
}

// What was admitted until a SIGTERM took effect, under load, is what the next process knows; after
// a kill -9 it is what was known when the killed one started, or a minute ago.
func TestPersistOverRealRestarts(t *testing.T) {
	t.Parallel()
	for _, persist := range []string{"persist", "persist " + filepath.Join(t.TempDir(), "counters")} {
		site := config(persist, zones(zone("kept", wide, "key all", "algorithm fixed_window")))
		c := start(t, 1, site)
		n, requests := c.Nodes[0], client(t, 8)
		tally, stop := load(t, requests, c.Nodes, "kept", 200)
		awaitAnswers(t, tally, 40)
		if err := n.Stop(); err != nil {
			t.Fatal(err)
		}
		stop()
		requests.Close()
		restart(t, n, site)
		admit(t, requests, c.Nodes, "kept", 1) // brings the key back
		// A request whose connection the end broke may have been counted, and sent again on
		// another: on each of the 8 connections one.
		lost, _ := tally.Errors()
		known, least := status(t, n, "kept").Known(), int64(tally.Admitted()+1)
		if known < least || known > least+int64(lost)+8 {
			t.Errorf("%s: after SIGTERM and a restart the node knows of %d requests, want %d, and up to %d more", persist, known, least, lost+8)
		}
		admit(t, requests, c.Nodes, "kept", 20)
		requests.Close()
		n.Kill()
		restart(t, n, site)
		admit(t, requests, c.Nodes, "kept", 1)
		if got := status(t, n, "kept").Known(); got < known || got > known+21 {
			t.Errorf("%s: after kill -9 and a restart the node knows of %d requests, want %d, as when the killed one started, and 21 more at most", persist, got, known)
		}
	}
}

// Sites come, go and move with reloads, and a client that has spent its limit in one of them has
// still all of it in every other one, and nothing more where it had spent it.
func TestReloadOfSitesKeepsTheirCounts(t *testing.T) {
	t.Parallel()
	c := start(t, 1, sites("", "a.test", "b.test", "c.test"))
	requests, n := client(t, 1), c.Nodes[0]
	spends(t, requests, n, "a.test", 3)
	reload(t, n, sites("", "b.test", "c.test"))
	spends(t, requests, n, "b.test", 3)
	reload(t, n, sites("", "d.test", "c.test", "b.test"))
	spends(t, requests, n, "b.test", 0)
	spends(t, requests, n, "c.test", 3)
	spends(t, requests, n, "d.test", 3)
}

// While nodes with one site less roll out, the sites they have in common share their counts through
// Redis, and no others.
func TestRolloutOfSitesSharesTheirCounts(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	options := slowRedis(r) + "\nsync_rate strict"
	c := start(t, 2, sites(options, "a.test", "b.test"))
	requests := client(t, 1)
	reload(t, c.Nodes[1], sites(options, "b.test"))
	spends(t, requests, c.Nodes[0], "a.test", 3)
	spends(t, requests, c.Nodes[1], "b.test", 3)
	spends(t, requests, c.Nodes[0], "b.test", 0)
}

// One limit holds in two regions, whatever happens to the links, to a relay and to a Redis: what
// both count in the end is what was admitted, to the request.
func TestTwoRegions(t *testing.T) {
	t.Parallel()
	var parts []string
	for _, algorithm := range []string{"sliding_window", "token_bucket"} {
		parts = append(parts, zone(algorithm, "key all", "limit 300/"+far, "algorithm "+algorithm))
	}
	all, c := startRegions(t, 2, 2, 50*time.Millisecond, zones(parts...)), client(t, 8)
	for _, name := range []string{"sliding_window", "token_bucket"} {
		here, there := all[0], all[1]
		admitted := 0
		send := func(r *realRegion, n int) {
			admitted += c.Burst(t.Context(), r.nodes, "/"+name, n, nil).Status(http.StatusOK)
		}
		send(here, 40)
		awaitEqual(t, all, name, admitted)
		send(there, 60)
		awaitEqual(t, all, name, admitted)
		if admitted != 100 {
			t.Errorf("%s: %d of the first 100 were admitted, want all", name, admitted)
		}
		cut(all, faultproxy.Blackhole)
		send(here, 20)
		send(there, 30)
		awaitTotal(t, here.redis, name, 120)
		awaitTotal(t, there.redis, name, 130)
		cut(all, faultproxy.Reset)
		cut(all, faultproxy.None)
		awaitEqual(t, all, name, admitted)
		send(here, 400)
		awaitEqual(t, all, name, admitted)
		eventually(t, "all nodes know that it is spent", func() error {
			send(there, 4)
			for _, n := range there.nodes {
				if known := status(t, n, name).Known(); known != int64(admitted) {
					return fmt.Errorf("node %d knows %d of %d", n.Number, known, admitted)
				}
			}
			return nil
		})
		had := admitted
		if send(there, 400); admitted < 300 || admitted != had {
			t.Errorf("%s: %d of a limit of 300 were admitted, %d of them after all nodes knew that it was spent", name, admitted, admitted-had)
		}
		awaitEqual(t, all, name, admitted)
	}
}

// What an operator changes on one node holds on all, also when Redis has just lost everything, and
// a node that does not answer is named.
func TestOperate(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	c := start(t, 3, config(slowRedis(r)+"\nsync_rate 100ms", zones(zone("none", "limit 0/"+far))))
	eventually(t, "all nodes are there", func() error {
		if out, _ := command(t, c.Nodes[0], "status"); strings.Count(out, "ago  yes") != 3 {
			return errors.New(out)
		}
		return nil
	})
	expect := func(want int) {
		t.Helper()
		for _, n := range c.Nodes {
			if got := get(t, n, "/none"); got != want {
				t.Errorf("node %d answers %d, want %d", n.Number, got, want)
			}
		}
	}
	expect(http.StatusTooManyRequests)
	doneAtLast(t, c.Nodes[1], "none      0%     in 1h\nApplied by 3 of 3 nodes.", "enforce none off")
	expect(http.StatusOK)
	done(t, c.Nodes[2], "Nothing is set for it now.\nApplied by 3 of 3 nodes.", "enforce none --remove")
	expect(http.StatusTooManyRequests)
	for i := range 3 {
		r.Do("FLUSHALL")
		doneAtLast(t, c.Nodes[i], "all zones  0%     in 10m  incident\nApplied by 3 of 3 nodes.", "enforce --all off --for 10m --note incident")
		awaitStatus(t, "/none", http.StatusOK, c.Nodes...)
	}
	done(t, c.Nodes[0], "Applied by 3 of 3 nodes.", "enforce --all --remove")
	expect(http.StatusTooManyRequests)

	if out, code := command(t, c.Nodes[0], "enforce", "nome", "off"); code != 1 || !strings.Contains(out, `did you mean`) {
		t.Errorf("a zone that is not there: exit code %d, want 1 and the nearest one:\n%s", code, out)
	}
	if err := c.Nodes[2].Suspend(); errors.Is(err, errors.ErrUnsupported) {
		return
	} else if err != nil {
		t.Fatal(err)
	}
	out, code := command(t, c.Nodes[0], "enforce", "none", "off")
	if err := c.Nodes[2].Resume(); err != nil {
		t.Fatal(err)
	}
	if code != 2 || !strings.Contains(out, "Applied by 2 of 3 nodes.") || !strings.Contains(out, "last heard") {
		t.Errorf("with a node that does not answer: exit code %d, want 2 and its name:\n%s", code, out)
	}
	awaitStatus(t, "/none", http.StatusOK, c.Nodes[2]) // it applies what it has missed
}

// With sync_rate 0 exactly the limit is admitted, however many requests come at once and wherever.
func TestStrictAdmitsExactlyTheLimit(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	long := []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"}
	var parts []string
	for _, algorithm := range long {
		parts = append(parts, zone(algorithm, "limit 100/"+far, "algorithm "+algorithm))
	}
	parts = append(parts, zone("burst", "limit 1000/"+far, "algorithm token_bucket", "burst 40"))
	c := start(t, 3, config("redis "+r.URL+"\n"+strictSlowRedis, zones(parts...)))
	requests := client(t, 60)
	for _, name := range append(long, "burst") {
		want := 100
		if name == "burst" {
			want = 40
		}
		for round, want := range []int{want, 0} {
			tally := requests.Burst(t.Context(), c.Nodes, "/"+name, 400, nil)
			if tally.Admitted() != want || tally.Denied() != 400-want {
				_, err := tally.Errors()
				t.Errorf("%s, burst %d of 400 requests: %d admitted and %d denied, want %d and %d (first error: %v)",
					name, round, tally.Admitted(), tally.Denied(), want, 400-want, err)
			}
		}
	}
	for _, name := range long[:2] {
		if got := total(t, r, name); got != 100 {
			t.Errorf("redis counts %d requests of zone %s, want 100", got, name)
		}
	}
}

// A reload that fails, early or late, leaves counters, limits and the syncs as they were.
func TestFailedReloadChangesNothing(t *testing.T) {
	t.Parallel()
	r, other := redistest.Start(t), redistest.Start(t)
	taken := takenPort(t)
	site := func(options ...string) string {
		return zones(zone("fixed", append(options, "algorithm fixed_window")...), zone("bucket", append(options, "algorithm token_bucket")...))
	}
	c := start(t, 2, config("redis "+r.URL+"\nsync_rate 100ms", site(wide)))
	changed := config("redis "+other.URL+"\nsync_rate 1h", site("limit 1/"+far))
	requests := client(t, 8)
	var tallies []*cluster.Tally
	var stops []func()
	for _, z := range []string{"fixed", "bucket"} {
		tally, stop := load(t, requests, c.Nodes, z, 100)
		tallies, stops = append(tallies, tally), append(stops, stop)
	}
	for _, tally := range tallies {
		awaitAnswers(t, tally, 20) // by both nodes
	}
	for i := range 8 { // apps start in a random order
		bad := map[string]string{
			"an unknown algorithm": strings.Replace(changed, "fixed_window", "no_window", 1),
			"a taken port":         changed + fmt.Sprintf("http://:%d {\n\trespond no\n}\n", taken),
			"an unknown directive": strings.Replace(changed, "respond ok", "respond ok\nnonsense", 1),
		}
		for what, caddyfile := range bad {
			if err := c.Nodes[i%2].Reload(t.Context(), caddyfile); err == nil {
				t.Fatalf("a reload with %s succeeded", what)
			}
			unchanged(t, c.Nodes[i%2], what)
		}
	}
	awaitAnswers(t, tallies[0], 20)
	for i, z := range []string{"fixed", "bucket"} {
		stops[i]()
		if got := tallies[i].Denied(); got != 0 {
			t.Errorf("%d requests were denied in zone %s", got, z)
		}
		awaitSent(t, c.Nodes, z)
		awaitTotal(t, r, z, tallies[i].Admitted())
		if got := sums(t, other, z); len(got) != 0 {
			t.Errorf("another Redis, of configurations that failed, holds %v", got)
		}
	}
}
