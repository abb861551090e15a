//go:build chaos

package cluster_test

import (
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

// nameOfTold is what a message has that reads what has changed.
var nameOfTold = regexp.MustCompile(`:3:\{\d+\}:told`)

// holdsReading reports whether a link holds back that the region's relay reads another one.
func (r *realRegion) holdsReading() bool {
	for _, link := range r.links {
		for _, piece := range link.Pieces() {
			if nameOfTold.Match(piece) {
				return true
			}
		}
	}
	return false
}

// linkTimeout is how long a relay waits for an answer of another region.
const linkTimeout = 3 * time.Second

// One Redis under two names is found out: nothing is told, and counts stand.
func TestOneRedisUnderTwoNames(t *testing.T) {
	t.Parallel()
	r, c := redistest.Start(t), client(t, 4)
	other := strings.Replace(r.URL, "127.0.0.1", "localhost", 1) // with one name it doesn't load
	text := config("regions {\n\there eu\n\tregion eu "+r.URL+"\n\tregion us "+other+"\n}", zones(zone("z", "key all", "limit 1000/"+far)))
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

// What an operator changes in one region holds in all, and the answer says how many have been told.
func TestOperateRegions(t *testing.T) {
	t.Parallel()
	all := startRegions(t, 2, 2, 10*time.Millisecond, zones(zone("none", "limit 0/"+far)))
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
	cut(all, faultproxy.Blackhole)
	out, code := command(t, here.nodes[0], "enforce", "none", "off")
	if code == 0 || !strings.Contains(out, "told to 0 of 1 regions") || !strings.Contains(out, "not told yet: r1") {
		t.Errorf("enforce with the other region cut off: exit code %d:\n%s", code, out)
	}
	cut(all, faultproxy.Reset)
	cut(all, faultproxy.None)
	await(http.StatusOK)
}
