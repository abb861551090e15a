package cluster_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// program is Caddy, built once for all tests of a run and removed after them.
var program struct {
	sync.Once
	dir, path string
	err       error
}

func TestMain(m *testing.M) {
	flag.Parse()
	raiseParallel()
	code := m.Run()
	control.close()
	if err := results.print(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if program.dir != "" {
		_ = os.RemoveAll(program.dir)
	}
	os.Exit(code)
}

func caddy(t *testing.T) string {
	t.Helper()
	program.Do(func() {
		if program.dir, program.err = os.MkdirTemp("", "tide-caddy"); program.err == nil {
			program.path, program.err = cluster.Build(context.Background(), program.dir, caddyForTests)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return program.path
}

// start starts nodes that end with the test. Their logs are shown if it fails.
func start(t *testing.T, nodes int, caddyfile string) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Start(t.Context(), cluster.Options{Program: caddy(t), Caddyfile: caddyfile, Nodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		for _, n := range c.Nodes {
			if t.Failed() {
				t.Logf("node %d wrote last:\n%s", n.Number, n.Log.Tail(6))
			}
			for _, line := range n.Log.With("panic") {
				t.Errorf("node %d: %s", n.Number, line)
			}
		}
	})
	return c
}

// config is a template of a Caddyfile with one site: options are those of the global rate_limit
// block, site is the rest.
func config(options, site string) string {
	return fmt.Sprintf(`{
	admin {{.Admin}}
	default_bind 127.0.0.1
	grace_period 5s
	log default {
		exclude admin http.log tls
	}
	rate_limit {
		%s
	}
}
http://:{{.Port}} {
	%s
	respond ok
}
`, strings.ReplaceAll(options, "\n", "\n\t\t"), strings.ReplaceAll(site, "\n", "\n\t"))
}

// zone is a zone for all requests to /<name>.
func zone(name string, options ...string) string {
	return fmt.Sprintf("zone %s {\nmatch {\npath /%s\n}\n%s\n}\n", name, name, strings.Join(options, "\n"))
}

func zones(all ...string) string { return "rate_limit {\n" + strings.Join(all, "") + "}" }

// far is a window whose boundary no test sees, except one that runs when 30 days end.
const far = "30d"

// client returns a client that is closed when the test ends.
func client(t *testing.T, concurrency int) *cluster.Client {
	c := cluster.NewClient(concurrency)
	t.Cleanup(c.Close)
	return c
}

// eventually waits for a condition that comes about in another process.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	const limit = 40 * time.Second
	var err error
	if !redistest.Poll(limit, func() bool { err = condition(); return err == nil }) {
		t.Fatalf("waited %s, but not until %s: %v", limit, what, err)
	}
}

// status returns a zone of a node's status.
func status(t *testing.T, n *cluster.Node, zone string) cluster.Zone {
	t.Helper()
	s, err := n.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Zone(zone)
}

// awaitKnown waits until every node knows of so many requests in a zone.
func awaitKnown(t *testing.T, nodes []*cluster.Node, zone string, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("all nodes know of %d requests in zone %s", want, zone), func() error {
		for _, n := range nodes {
			if z := status(t, n, zone); z.Known() != int64(want) {
				return fmt.Errorf("node %d knows %d: own %d, remote %d, unsent %d", n.Number, z.Known(), z.Own, z.Remote, z.Unsent)
			}
		}
		return nil
	})
}

// awaitSent waits until Redis confirmed all that the nodes have counted in a zone.
func awaitSent(t *testing.T, nodes []*cluster.Node, zone string) {
	t.Helper()
	eventually(t, "nothing is unsent in zone "+zone, func() error {
		for _, n := range nodes {
			if z := status(t, n, zone); z.Unsent != 0 {
				return fmt.Errorf("node %d has %d unsent", n.Number, z.Unsent)
			}
		}
		return nil
	})
}

// awaitFirstCycle waits until every zone that syncs has had its first cycle, which is at once. What
// it counts after that waits for the next one.
func awaitFirstCycle(t *testing.T, nodes []*cluster.Node) {
	t.Helper()
	eventually(t, "every zone has had its first sync cycle", func() error {
		for _, n := range nodes {
			s, err := n.Status(t.Context())
			if err != nil {
				return err
			}
			for _, z := range s.Zones {
				if z.Sync != nil && z.Sync.Cycles == 0 {
					return fmt.Errorf("zone %s of node %d has not", z.Zone, n.Number)
				}
			}
		}
		return nil
	})
}

// awaitUp waits until a node's syncs work.
func awaitUp(t *testing.T, n *cluster.Node) {
	t.Helper()
	eventually(t, "the syncs work", func() error {
		s, err := n.Status(t.Context())
		if err != nil || s.Redis == nil || !s.Redis.Up || s.Redis.Syncs == 0 && s.Redis.Nodes == 0 {
			return fmt.Errorf("%+v, %v", s.Redis, err)
		}
		return nil
	})
}

// sums are the totals of a zone in Redis, by the names of the hashes.
func sums(t *testing.T, s *redistest.Server, zone string) map[string]int {
	t.Helper()
	c := s.Client()
	defer c.Close()
	all := make(map[string]int)
	keys := c.Scan(t.Context(), 0, "*:"+zone+":*", 1000).Iterator()
	for keys.Next(t.Context()) {
		if strings.HasSuffix(keys.Val(), ":fill") {
			continue // of a bucket
		}
		text, err := c.HGet(t.Context(), keys.Val(), "sum").Result()
		if err == redis.Nil {
			continue // strict mode's record of calls
		}
		if err != nil {
			t.Fatalf("HGET %s sum: %v", keys.Val(), err)
		}
		first, _, _ := strings.Cut(text, " ")
		if all[keys.Val()], err = strconv.Atoi(first); err != nil {
			t.Fatalf("HGET %s sum = %q", keys.Val(), text)
		}
	}
	if err := keys.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// total is the sum of sums.
func total(t *testing.T, s *redistest.Server, zone string) (n int) {
	t.Helper()
	for _, sum := range sums(t, s, zone) {
		n += sum
	}
	return n
}

// awaitTotal waits until Redis holds a total.
func awaitTotal(t *testing.T, s *redistest.Server, zone string, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("redis counts %d requests of zone %s", want, zone), func() error {
		if got := total(t, s, zone); got != want {
			return fmt.Errorf("it counts %d", got)
		}
		return nil
	})
}

// admit sends requests and fails unless all are admitted.
func admit(t *testing.T, c *cluster.Client, nodes []*cluster.Node, zone string, requests int) {
	t.Helper()
	if tally := c.Burst(t.Context(), nodes, "/"+zone, requests, nil); tally.Admitted() != requests {
		_, err := tally.Errors()
		t.Fatalf("%d of %d requests were admitted in zone %s, %d denied, want all (first error: %v)", tally.Admitted(), requests, zone, tally.Denied(), err)
	}
}

// load sends requests at an even rate, to the nodes in turn, until stop is called, which returns
// the tally of them.
func load(t *testing.T, c *cluster.Client, nodes []*cluster.Node, zone string, rate float64) (tally *cluster.Tally, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	tally = new(cluster.Tally)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Steady(ctx, nodes, "/"+zone, rate, 0, func(i int) int { return i % len(nodes) }, tally)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return tally, stop
}

// awaitAnswers waits until so many more requests have been answered.
func awaitAnswers(t *testing.T, tally *cluster.Tally, more int) {
	t.Helper()
	want := tally.Sent() + more
	eventually(t, "requests are answered", func() error {
		if got := tally.Sent(); got < want {
			return fmt.Errorf("%d of %d", got, want)
		}
		return nil
	})
}
