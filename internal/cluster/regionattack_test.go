//go:build chaos

package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// Attacks on limits over regions that were tried and found something.

// A message of a ban that arrives after a reset, as it was on a link that was cut meanwhile, bans
// nobody once more.
func TestBanThatComesAfterAReset(t *testing.T) {
	t.Parallel()
	all, c := startRegions(t, 2, 1, 10*time.Millisecond, zones(
		zone("z", "key {query}", "limit 20/"+far, "ban 1h after 5/1h"), zone("other", "key all", "limit 100/"+far),
	)), client(t, 4)
	here, there, link := all[0], all[1], all[0].links[0]
	var late [][]byte
	holdsBan := func() bool {
		late = slices.DeleteFunc(link.Pieces(), func(piece []byte) bool { return !bytes.Contains(piece, []byte(":z:ban:")) })
		return len(late) > 0
	}
	var path string
	sent := 0
	eventually(t, "a message of a ban is held", func() error {
		link.Set(faultproxy.None)
		sent++
		admit(t, c, here.nodes, "other", 1)
		awaitEqual(t, all, "other", sent) // so there is a connection
		link.Set(faultproxy.Hold)
		path = fmt.Sprintf("/z?k%d", sent)
		c.Burst(t.Context(), here.nodes, path, 40, nil)
		if !redistest.Poll(linkTimeout, holdsBan) {
			return errors.New("none is")
		}
		return nil
	})
	link.Set(faultproxy.None)
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
	await(true)
	doneAtLast(t, here.nodes[0], "told to 1 of 1 regions", "reset z --all")
	await(false)
	if reply, err := link.Deliver(late...); err != nil || !bytes.Contains(reply, []byte(" 3600000000\r\n")) {
		t.Fatalf("the other region has answered the late message by %q, %v", reply, err)
	}
	for range 2 { // a node hears of a ban with the sync of its key
		await(false)
		awaitSent(t, there.nodes, "z")
	}
	await(false)
}
