//go:build chaos

package cluster_test

import (
	"math"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A bucket that refills admits what is in it and what flows in while the requests came, and a queue
// what fits and what left it.
func TestStrictBucketsAdmitWhatRunsIn(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	c := start(t, 3, config("redis "+r.URL+"\n"+strictSlowRedis, zones(
		zone("token_bucket", "limit 10/1s", "algorithm token_bucket", "burst 30"),
		zone("gcra", "limit 10/1s", "algorithm gcra", "burst 30"),
		zone("leaky_bucket", "limit 10/1s", "algorithm leaky_bucket", "queue 29"),
	)))
	for _, name := range []string{"token_bucket", "gcra", "leaky_bucket"} {
		requests := client(t, 100)
		began := time.Now()
		tally := requests.Burst(t.Context(), c.Nodes, "/"+name, 400, nil)
		most := 30 + int(math.Ceil(10*time.Since(began).Seconds()))
		if got := tally.Admitted(); got < 30 || got > most || got+tally.Denied() != 400 {
			_, err := tally.Errors()
			t.Errorf("%s: of 400 requests %d were admitted and %d denied, want 30 to %d admitted (first error: %v)",
				name, got, tally.Denied(), most, err)
		}
	}
}

// A request that one zone denies is rolled back in the others, also where Redis decides.
func TestStrictZonesAgree(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	const match = "match {\npath /both\n}\n"
	c := start(t, 3, config("redis "+r.URL+"\n"+strictSlowRedis, zones(
		"zone a_wide {\n"+match+"limit 1000/"+far+"\nalgorithm fixed_window\n}\n",
		"zone b_tight {\n"+match+"limit 30/"+far+"\nalgorithm fixed_window\n}\n",
	)))
	requests := client(t, 30)
	if got := requests.Burst(t.Context(), c.Nodes, "/both", 200, nil).Admitted(); got != 30 {
		t.Errorf("two zones with limits 1000 and 30 admitted %d of 200 requests, want 30", got)
	}
	awaitTotal(t, r, "a_wide", 30)
	awaitTotal(t, r, "b_tight", 30)
}
