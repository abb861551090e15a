//go:build chaos

package cluster_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// In the middle of a roll-out two nodes count units and a third one requests, with one limit. They
// share what is spent, and what a request costs tells nobody that a node has more of them: below
// the limit nobody is denied, and together they admit it.
func TestNodesWithDifferentCosts(t *testing.T) { differentCosts(t, "cost %d", 1) }

// The same where two nodes reserve and settle these units: what they have settled is no number of
// requests.
func TestNodesOfWhichTwoSettleTheirCosts(t *testing.T) {
	differentCosts(t, "cost %d\ncount_responses 2xx", 1)
}

// The same where two nodes reserve twice of what the responses then say.
func TestNodesOfWhichTwoGoByResponses(t *testing.T) {
	differentCosts(t, "cost %d * 2\nresponse_cost header X-Cost", 2)
}

func differentCosts(t *testing.T, option string, estimate int) {
	t.Helper()
	t.Parallel()
	const cost, limit = 1000, 120_000
	r := redistest.Start(t)
	algorithms := []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"}
	site := func(option string) string {
		var parts []string
		for _, algorithm := range algorithms {
			parts = append(parts, keyedZone(algorithm, algorithm, fmt.Sprintf("limit %d/%s", limit, far), "algorithm "+algorithm, option))
		}
		return config(slowRedis(r)+"\nsync_rate 100ms", fmt.Sprintf("header X-Cost %d\n", cost)+zones(parts...))
	}
	c, all := start(t, 3, site(fmt.Sprintf(option, cost))), client(t, 4)
	reload(t, c.Nodes[0], site(""))
	awaitFirstCycle(t, c.Nodes)
	for _, algorithm := range algorithms {
		path := "/" + algorithm + "?k=half"
		tally := new(cluster.Tally)
		all.Steady(t.Context(), c.Nodes, path, 100, 90, func(i int) int { return i % 3 }, tally)
		if got := tally.Status(http.StatusTooManyRequests); got > 0 {
			t.Errorf("%s: %d of 90 requests were denied at half the limit", algorithm, got)
		}
		awaitTotal(t, r, algorithm, 60*cost+30)
		eventually(t, "Redis knows of as many requests in "+algorithm, func() error {
			if n := attemptsOf(t, r, algorithm); n != 90 {
				return fmt.Errorf("it knows of %d, want 90, whatever they cost", n)
			}
			return nil
		})
		// What a node expects of the others may deny for a moment.
		admitted, want := 0, (limit-60*cost-30-estimate*cost)/cost+1
		ask := func() int {
			return all.Burst(t.Context(), c.Nodes[1:2], path, 1, nil).Status(http.StatusOK)
		}
		redistest.Eventually(t, algorithm+" admits what is left", func() bool {
			admitted += ask()
			return admitted == want
		})
		awaitTotal(t, r, algorithm, 60*cost+30+want*cost) // then the node has heard of the others
		if ask() > 0 {
			t.Errorf("%s: more than %d were admitted", algorithm, want)
		}
	}
}

// In the middle of a roll-out all nodes have a cost, of which two count by responses as well. What
// they settle is no number of requests: at half the limit no node takes its share for a small part,
// denies, or syncs with each request.
func TestNodesThatCountByCostAndByResponses(t *testing.T) {
	t.Parallel()
	const cost, limit, requests = 1000, 360_000, 180
	r := redistest.Start(t)
	algorithms := []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"}
	site := func(options ...string) string {
		var parts []string
		for _, algorithm := range algorithms {
			parts = append(parts, keyedZone(algorithm, "both", append(options, fmt.Sprintf("limit %d/%s", limit, far), "algorithm "+algorithm, fmt.Sprint("cost ", cost))...))
		}
		return config(slowRedis(r)+"\nsync_rate 1s", fmt.Sprintf("header X-Cost %d\n", cost)+zones(parts...))
	}
	c, all := start(t, 3, site("count_responses 2xx", "response_cost header X-Cost")), client(t, 4)
	reload(t, c.Nodes[0], site())
	awaitFirstCycle(t, c.Nodes)
	count := func() (synced float64, cycles int64) {
		for _, n := range c.Nodes {
			synced += syncedKeys(t, n)
			for _, algorithm := range algorithms {
				cycles += status(t, n, algorithm).Sync.Cycles
			}
		}
		return synced, cycles
	}
	before, cyclesBefore := count()
	tally := new(cluster.Tally)
	all.Steady(t.Context(), c.Nodes, "/both?k=half", 150, requests, func(i int) int { return i % 3 }, tally)
	admitted := tally.Status(http.StatusOK)
	if admitted != requests {
		t.Errorf("%d of %d requests were admitted up to half the limit", admitted, requests)
	}
	for _, algorithm := range algorithms {
		awaitTotal(t, r, algorithm, admitted*cost)
	}
	after, cyclesAfter := count()
	// A node syncs a key when it meets it, once more to know its share, in each cycle, and now and
	// then when much of what is left is unsent: not with each of its 60 requests.
	early := int(after-before) - int(cyclesAfter-cyclesBefore)
	if most := 8 * len(algorithms) * len(c.Nodes); early > most {
		t.Errorf("%d keys were synced beside the cycles, want %d at most", early, most)
	}
	for _, algorithm := range algorithms {
		if n := attemptsOf(t, r, algorithm); n != requests {
			t.Errorf("Redis knows of %d requests of %s, want %d", n, algorithm, requests)
		}
	}
}

// attemptsOf is how many requests Redis has of a zone.
func attemptsOf(t *testing.T, r *redistest.Server, zone string) (sum int64) {
	t.Helper()
	for key := range sums(t, r, zone) {
		var total, attempts int64
		if _, err := fmt.Sscan(r.Do("HGET", key, "sum").(string), &total, &attempts); err != nil {
			t.Fatalf("HGET %s sum: %v", key, err)
		}
		sum += attempts
	}
	return sum
}

// A request that costs more than is left, again and again on one node, tells the others of no more
// requests than these are: nobody is denied there below the limit, and they sync no more often.
func TestAHostileCostSpoilsNobodysShare(t *testing.T) {
	t.Parallel()
	const huge = 1 << 20
	r := redistest.Start(t)
	site := config(slowRedis(r)+"\nsync_rate 100ms", zones(keyedZone("lump", "lump", "limit 3000000/"+far, "algorithm fixed_window", "cost {http.request.uri.query.c}", "cost_default 1")))
	c, all := start(t, 3, site), client(t, 8)
	awaitFirstCycle(t, c.Nodes)
	if got := all.Burst(t.Context(), c.Nodes[:1], "/lump?k=one&c=1000000", 2, nil).Status(http.StatusOK); got != 2 {
		t.Fatalf("%d of 2 large requests were admitted", got)
	}
	others := func() float64 {
		before := syncedKeys(t, c.Nodes[1]) + syncedKeys(t, c.Nodes[2])
		tally := new(cluster.Tally)
		all.Steady(t.Context(), c.Nodes[1:], "/lump?k=one&c=500", 100, 400, func(i int) int { return i % 2 }, tally)
		if got := tally.Status(http.StatusOK); got != 400 {
			t.Errorf("%d of 400 requests of other nodes were admitted", got)
		}
		return syncedKeys(t, c.Nodes[1]) + syncedKeys(t, c.Nodes[2]) - before
	}
	others() // and all nodes know the key
	alone := others()
	ctx, cancel := context.WithCancel(t.Context())
	var hostile sync.WaitGroup
	denied := new(cluster.Tally)
	hostile.Go(func() {
		all.Steady(ctx, c.Nodes[:1], fmt.Sprintf("/lump?k=one&c=%d", huge), 5, 0, func(int) int { return 0 }, denied)
	})
	beside := others()
	cancel()
	hostile.Wait()
	if denied.Status(http.StatusTooManyRequests) < 5 || denied.Status(http.StatusOK) > 0 {
		t.Errorf("the hostile requests were answered %+v", denied)
	}
	if beside > 1.5*alone+10 {
		t.Errorf("the others sync %v keys beside a hostile cost, and %v without", beside, alone)
	}
}

// syncedKeys is how many counts a node has synced.
func syncedKeys(t *testing.T, n *cluster.Node) float64 {
	t.Helper()
	response, err := http.Get("http://" + n.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^caddy_rate_limit_synced_keys_total\{.*\} (\S+)$`).FindSubmatch(body)
	if m == nil {
		t.Fatalf("node %d has no such metric", n.Number)
	}
	synced, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return synced
}
