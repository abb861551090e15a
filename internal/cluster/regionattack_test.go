//go:build chaos

package cluster_test

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Attacks on limits over regions that were tried and found something.

// reading is what a call has that reads what has changed, and not only how the region stands.
var reading = regexp.MustCompile(`\r\n[1-9]\d*\r\n\$4\r\nread\r\n`)

// A ban that is read before a reset and answered after it, as the link is slow, bans nobody once
// more.
func TestBanThatComesAfterAReset(t *testing.T) {
	t.Parallel()
	all, c := startRegions(t, 2, 1, 10*time.Millisecond, zones(
		zone("z", "key {query}", "limit 20/"+far, "ban 1h after 5/1h"), zone("other", "key all", "limit 100/"+far),
	)), client(t, 4)
	here, there, link := all[0], all[1], all[0].links[0]
	admit(t, c, there.nodes, "other", 1)
	awaitEqual(t, all, "other", 1) // so there is a connection
	link.SetDelay(2 * time.Second)
	path := "/z?k"
	c.Burst(t.Context(), there.nodes, path, 40, nil)
	bans := func(r *realRegion) int { return len(r.redis.Client().Keys(t.Context(), "*:z:ban:*").Val()) }
	eventually(t, "the ban is in redis", func() error {
		if bans(there) == 0 {
			return errors.New("none is")
		}
		return nil
	})
	asked := link.Requests()
	eventually(t, "the ban is read", func() error {
		if n := link.Requests(); n == asked || !reading.Match(link.Last()) {
			return fmt.Errorf("%d pieces since, the last is %q", n-asked, link.Last())
		}
		return nil
	})
	if bans(here) > 0 {
		t.Fatal("the answer is there before the reset")
	}
	await := func(banned bool) {
		t.Helper()
		for _, r := range all {
			eventually(t, fmt.Sprintf("it is banned in %s: %t", r.name, banned), func() error {
				status := get(t, r.nodes[0], path)
				out, _ := command(t, r.nodes[0], "explain", "http://"+r.nodes[0].Addr+path)
				if status == http.StatusOK == banned || strings.Contains(out, "banned until") != banned {
					return fmt.Errorf("%d, %s", status, out)
				}
				return nil
			})
		}
	}
	_, _ = command(t, here.nodes[0], "reset", "z", "--all")
	eventually(t, "the answer is there", func() error {
		if bans(here) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	await(false)
	for range 2 { // a node hears of a ban with the sync of its key
		await(false)
		awaitSent(t, there.nodes, "z")
	}
	await(false)
}
