package cluster_test

import (
	"math"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// strictSlowRedis gives Redis all the time that a busy machine may need: a node that gives up on it
// decides by itself, and is no longer exact.
const strictSlowRedis = "sync_rate strict\nstrict_timeout 20s"

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
