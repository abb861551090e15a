package cluster_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A right login on one node clears what wrong ones have spent on all of them, of its user alone:
// at an interval within that of the user's next request there, and in a strict zone at once.
func TestARightLoginClearsTheCountOnAllNodes(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	forgives := []string{"key {http.request.header.User}", "empty_key skip", "limit 6/" + far + " 8/60d", "algorithm sliding_log", "count_responses 401", "forgive_responses 303"}
	c := start(t, 3, config("redis "+r.URL+"\n"+strictSlowRedis, zones(
		zone("interval", append(forgives, "sync_rate 200ms")...),
		zone("strict", append(forgives, "sync_rate strict")...),
	)+"\n@right header Password right\nrespond @right 303\nrespond 401"))
	guess := func(node int, zone, user, password string) int {
		return answerTo(t, "http://"+c.Nodes[node%3].Addr+"/"+zone, "User", user, "Password", password).status
	}
	for _, zone := range []string{"interval", "strict"} {
		for i := range 5 {
			for _, user := range []string{"alice", "bob"} {
				if got := guess(i, zone, user, "wrong"); got != http.StatusUnauthorized {
					t.Errorf("%s: guess %d of %s: %d", zone, i, user, got)
				}
			}
		}
		awaitSent(t, c.Nodes, zone)
		if got := guess(2, zone, "alice", "right"); got != http.StatusSeeOther {
			t.Errorf("%s: the right password: %d", zone, got)
		}
		for i := range 6 {
			eventually(t, "guesses of alice count from none", func() error {
				if got := guess(i, zone, "alice", "wrong"); got != http.StatusUnauthorized {
					return fmt.Errorf("%s: guess %d after the right password: %d", zone, i, got)
				}
				return nil
			})
		}
		if got := guess(0, zone, "alice", "wrong"); zone == "strict" && got != http.StatusTooManyRequests {
			t.Errorf("%s: the seventh guess: %d", zone, got)
		}
		eventually(t, "no more than six are admitted on any node", func() error {
			for i := range 3 {
				for _, user := range []string{"alice", "bob"} {
					if got := guess(i, zone, user, "wrong"); got != http.StatusTooManyRequests {
						return fmt.Errorf("%s: node %d answers %d to %s", zone, i, got, user)
					}
				}
			}
			return nil
		})
	}
}
