package cluster_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
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
		options := []string{"limit 1000000/1m", "algorithm " + algorithm, "early_sync off"}
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

// A node that gets a SIGTERM while Redis is unavailable logs once for each zone how much the other
// nodes don't hear of.
func TestTerminatedNodeLogsWhatItCouldNotSend(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	c := start(t, 1, config("redis "+r.URL+"\nsync_rate 100ms", zones(
		zone("fixed", "limit 1000/"+far+" 100000/29d", "algorithm fixed_window"),
		zone("bucket", "limit 1000/"+far, "algorithm token_bucket"),
		zone("synced", "limit 1000/"+far, "algorithm gcra"),
		zone("strictbucket", "limit 1000/"+far, "algorithm token_bucket", "sync_rate strict"),
		zone("strictlog", "limit 1000/"+far, "algorithm sliding_log", "sync_rate strict"),
		zone("strictsynced", "limit 1000/"+far, "algorithm gcra", "sync_rate strict"),
	)))
	n, requests := c.Nodes[0], client(t, 4)
	for _, z := range []string{"strictbucket", "strictlog", "strictsynced"} {
		admit(t, requests, c.Nodes, z, 20)
		awaitSent(t, c.Nodes, z)
	}
	for _, z := range []string{"fixed", "bucket", "synced"} {
		admit(t, requests, c.Nodes, z, 20)
		awaitSent(t, c.Nodes, z)
	}
	r.Kill()
	eventually(t, "the outage is noticed", func() error {
		s, err := n.Status(t.Context())
		if err != nil || s.Redis.Up {
			return fmt.Errorf("%+v, %v", s.Redis, err)
		}
		return nil
	})
	some := []string{"fixed", "bucket", "strictbucket", "strictlog"}
	for _, z := range some {
		admit(t, requests, c.Nodes, z, 7)
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	lines := n.Log.With("TIDE015")
	slices.Sort(lines)
	if len(lines) != len(some) {
		t.Fatalf("%d lines have counts that were not sent, want one of each zone that had some: %q", len(lines), lines)
	}
	for _, z := range some {
		if !slices.ContainsFunc(lines, func(line string) bool {
			return strings.Contains(line, `"zone":"`+z+`"`) && strings.Contains(line, `"keys":1,"requests":7,`)
		}) {
			t.Errorf("no line has 7 requests of one key in zone %s: %q", z, lines)
		}
	}
}

// A Redis that is not there when the nodes start is no error; requests are limited by each node's
// own counts, and those arrive when it comes.
func TestRedisComesLate(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t, redistest.Unix())
	r.Kill()
	c := start(t, 2, config("redis "+r.URL+"\nsync_rate 100ms", zones(
		zone("wide", "limit 1000/"+far, "algorithm fixed_window"), zone("narrow", "limit 5/"+far, "algorithm fixed_window"))))
	requests := client(t, 4)
	admit(t, requests, c.Nodes, "wide", 40)
	if got := requests.Burst(t.Context(), c.Nodes[:1], "/narrow", 20, nil).Admitted(); got != 5 {
		t.Errorf("without Redis a node admitted %d requests at limit 5", got)
	}
	r.Restart()
	awaitTotal(t, r, "wide", 40)
	awaitTotal(t, r, "narrow", 5)
	for _, n := range c.Nodes {
		awaitUp(t, n)
		eventually(t, "the node tells it", func() error {
			if len(n.Log.With("sync with redis works again")) == 0 {
				return errors.New("no line says that it works again")
			}
			return nil
		})
		down, up := n.Log.With("sync with redis fails"), n.Log.With("sync with redis works again")
		if len(down) != 1 || len(up) != 1 {
			t.Errorf("node %d wrote %d lines on the way down and %d on the way up, want one each", n.Number, len(down), len(up))
		}
		for _, line := range n.Log.Lines() {
			if !strings.HasPrefix(line, "{") {
				t.Errorf("node %d wrote past the log: %s", n.Number, line)
			}
		}
	}
}

// faulty are two nodes that sync a window and a bucket through a proxy, and what was spent of each.
type faulty struct {
	t     *testing.T
	r     *redistest.Server
	proxy *faultproxy.Proxy
	spend func()
	zones []string
	spent int
}

// counted waits until Redis has counted all.
func (f *faulty) counted() {
	f.t.Helper()
	for _, z := range f.zones {
		awaitTotal(f.t, f.r, z, f.spent)
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

// loseReplies loses the reply of a message that arrives. What goes over an open connection arrives,
// though the node gets no reply. A new connection fails in its handshake. Where heartbeats come
// first and take the open connections nothing arrives; then it is tried again.
func (f *faulty) loseReplies() {
	t, r, proxy := f.t, f.r, f.proxy
	t.Helper()
	for arrived, tries := false, 0; !arrived; tries++ {
		if tries == 20 {
			t.Fatal("no message arrives whose reply is lost")
		}
		before := total(t, r, "fixed") + total(t, r, "bucket")
		proxy.Set(faultproxy.DropReplies)
		f.spend()
		arrived = redistest.Poll(time.Second, func() bool {
			return total(t, r, "fixed")+total(t, r, "bucket") > before
		})
		proxy.Set(faultproxy.None)
		f.spend()
		f.counted()
	}
}

// deliverLate holds messages, and delivers them late, and then late once more.
func (f *faulty) deliverLate() {
	t, proxy := f.t, f.proxy
	t.Helper()
	proxy.Set(faultproxy.Hold)
	before := proxy.Held()
	f.spend()
	eventually(t, "messages are held", func() error {
		if held := proxy.Held(); held < before+8 {
			return fmt.Errorf("%d", held)
		}
		return nil
	})
	proxy.Set(faultproxy.None)
	f.spend()
	f.counted()
	held := proxy.Pieces()
	for range 2 {
		if _, err := proxy.Deliver(held...); err != nil {
			t.Logf("delivering what was held: %v", err)
		}
		for _, z := range f.zones {
			if got := total(t, f.r, z); got != f.spent {
				t.Errorf("after a late duplicate redis counts %d requests of zone %s, want %d", got, z, f.spent)
			}
		}
	}
}

// A bucket that is full again is no longer needed to decide, but its epoch's total still is: a node
// that forgot it would report less.
func TestForgottenBucketTakesNothingBack(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	all := map[string]string{
		"slow": "600/1m", // full again long before its epoch is over
		"fast": "10/1s",  // forgotten, epoch and all
	}
	var parts []string
	for name, limit := range all {
		parts = append(parts, zone(name, "limit "+limit, "algorithm token_bucket"))
	}
	c := start(t, 1, config("redis "+r.URL+"\nsync_rate 50ms", "rate_limit {\n"+strings.Join(parts, "")+"sweep_interval 20ms\n}"))
	requests := client(t, 4)
	high := make(map[string]int)
	watch := func() {
		for name := range all {
			for hash, sum := range sums(t, r, name) {
				if sum < high[hash] {
					t.Errorf("the sum of %s fell from %d to %d", hash, high[hash], sum)
				}
				high[hash] = max(high[hash], sum)
			}
		}
	}
	for round := range 3 {
		for name := range all {
			admit(t, requests, c.Nodes, name, 8)
			awaitTotal(t, r, name, 8*(round+1))
		}
		watch()
		eventually(t, "the fast bucket is forgotten and the slow one full again", func() error {
			watch()
			if z := status(t, c.Nodes[0], "fast"); z.Keys != 0 {
				return fmt.Errorf("%+v", z)
			}
			return nil
		})
	}
}

// Every zone syncs at its own sync_rate, its handler's or the global one.
func TestZonesSyncAtTheirOwnRates(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	const options = "limit 1000000/" + far + "\nalgorithm fixed_window\nearly_sync off"
	site := zones(
		zone("fast", options, "sync_rate 50ms"), zone("slow", options, "sync_rate 1h"), zone("inherited", options), "sync_rate 500ms\n",
	)
	began := time.Now()
	c := start(t, 1, config("redis "+r.URL+"\nsync_rate 2h", site))
	n := c.Nodes[0]
	awaitFirstCycle(t, c.Nodes)
	requests := client(t, 4)
	for _, z := range []string{"fast", "slow", "inherited"} {
		load(t, requests, c.Nodes, z, 200)
	}
	// A busy machine leaves cycles out, so their numbers are compared over the shortest time that
	// shows a difference.
	var fast, inherited int64
	eventually(t, "the fast zone has six cycles while the other has one", func() error {
		f, i := status(t, n, "fast").Sync.Cycles, status(t, n, "inherited").Sync.Cycles
		if i > inherited+1 {
			fast, inherited = f, i
		}
		if inherited == 0 || f < fast+6 {
			return fmt.Errorf("%d cycles, and %d", f-fast, i-inherited)
		}
		return nil
	})
	eventually(t, "the zone that inherits its sync_rate has eight cycles", func() error {
		if i := status(t, n, "inherited").Sync.Cycles; i < 8 {
			return fmt.Errorf("%d cycles", i)
		}
		return nil
	})
	cycles, most := status(t, n, "inherited").Sync.Cycles, int64(time.Since(began)/(500*time.Millisecond))+1
	if cycles > most {
		t.Errorf("a zone with sync_rate 500ms had %d cycles, want %d at most in %v", cycles, most, time.Since(began))
	}
	for _, z := range []string{"fast", "inherited"} {
		// one may be under way
		if got, most := int64(pushes(t, r, z)), status(t, n, z).Sync.Cycles; got < 2 || got > most+1 {
			t.Errorf("zone %s was sent %d times in %d cycles", z, got, most)
		}
	}
	if got := pushes(t, r, "slow"); got != 0 {
		t.Errorf("a zone with sync_rate 1h was sent %d times after its first cycle", got)
	}
	if z := status(t, n, "slow"); z.Sync.Cycles != 1 || z.Own == 0 || z.Unsent != z.Own {
		t.Errorf("a zone with sync_rate 1h has had %d cycles, and of %d requests %d are unsent; want one cycle, before all of them", z.Sync.Cycles, z.Own, z.Unsent)
	}
}

// pushes is how often the only node has sent a zone's only key: the number of its last message.
func pushes(t *testing.T, s *redistest.Server, zone string) int {
	t.Helper()
	for hash := range sums(t, s, zone) {
		fields := s.Do("HGETALL", hash)
		for name, value := range fields.(map[any]any) {
			if name != "sum" && name != "at" {
				n, _ := strconv.Atoi(strings.Fields(value.(string))[0])
				return n
			}
		}
	}
	return 0
}

// Nodes of one cluster find each other, and a namespace keeps clusters apart that share a Redis.
func TestNamespacesAreApart(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	site := zones(zone("fixed", "limit 100/"+far, "algorithm fixed_window"))
	shop := start(t, 2, config("redis "+r.URL+"\nsync_rate 100ms\nnamespace shop", site))
	blog := start(t, 1, config("redis "+r.URL+"\nsync_rate 100ms\nnamespace blog", site))
	requests := client(t, 4)
	admit(t, requests, shop.Nodes, "fixed", 20)
	admit(t, requests, blog.Nodes, "fixed", 5)
	awaitSent(t, slices.Concat(shop.Nodes, blog.Nodes), "fixed")
	admit(t, requests, blog.Nodes, "fixed", 1)
	awaitKnown(t, blog.Nodes, "fixed", 6)
	for _, of := range []struct {
		*cluster.Cluster
		nodes int64
	}{{shop, 2}, {blog, 1}} {
		eventually(t, "nodes know how many they are", func() error {
			s, err := of.Nodes[0].Status(t.Context())
			if err != nil || s.Redis.Nodes != of.nodes {
				return fmt.Errorf("%+v, %v, want %d", s.Redis, err, of.nodes)
			}
			return nil
		})
	}
}
