package cluster_test

import (
	"fmt"
	"net/http"
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
		awaitKnown(t, c.Nodes, algorithm, 60*cost+30)
		// What a node expects of the others may deny for a moment.
		admitted, want := 0, (limit-60*cost-30-estimate*cost)/cost+1
		ask := func() int {
			return all.Burst(t.Context(), c.Nodes[1:2], path, 1, nil).Status(http.StatusOK)
		}
		redistest.Eventually(t, algorithm+" admits what is left", func() bool {
			admitted += ask()
			return admitted == want
		})
		if ask() > 0 {
			t.Errorf("%s: more than %d were admitted", algorithm, want)
		}
	}
}
