//go:build chaos

package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

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
