package ratesync

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A Redis that is full because of others never gives a place twice with noeviction, which the
// documentation recommends: what it holds stays, and what it can't write it doesn't grant. With
// volatile-ttl it forgets who has the places, as these live for the shortest time.
func TestPlacesInAFullRedis(t *testing.T) {
	t.Parallel()
	for policy, exact := range map[string]bool{"noeviction": true, "volatile-ttl": false} {
		r := redistest.Start(t, redistest.Config("--maxmemory", "4mb", "--maxmemory-policy", policy, "--maxmemory-samples", "64"))
		has := map[string]int{}
		ask := func(node string, seq int) string {
			reply := r.Do("EVAL", slotsSource, 1, "{1}:places", node, seq, 60_000, 120_000, has[node], "2 4").(string)
			var others, granted int
			if _, err := fmt.Sscan(reply, &others, &granted); err == nil {
				has[node] += granted
			}
			return reply
		}
		nodes := []string{"a", "b", "c"}
		for _, node := range nodes {
			ask(node, 1)
		}
		if sum := has["a"] + has["b"] + has["c"]; sum != 4 {
			t.Fatalf("%s: %d places given, want 4", policy, sum)
		}
		c := r.Client()
		full := 0
		for i := range 6000 {
			if err := c.Set(t.Context(), fmt.Sprint("another's ", i), strings.Repeat("x", 1000), time.Hour).Err(); err != nil {
				full++
			}
		}
		_ = c.Close()
		var replies []string
		for _, node := range nodes {
			replies = append(replies, ask(node, 2))
		}
		sum := has["a"] + has["b"] + has["c"]
		t.Logf("%s: %d writes of others rejected, then %q: %d places of 4", policy, full, replies, sum)
		if exact && (sum != 4 || full == 0) || !exact && sum <= 4 {
			t.Errorf("%s: %d places of 4 given, %d writes of others rejected", policy, sum, full)
		}
	}
}
