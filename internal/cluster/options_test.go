//go:build chaos

package cluster_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// An uneven are two nodes of which the first one has options that the other doesn't.
type uneven struct {
	*testing.T
	c   *cluster.Cluster
	all *cluster.Client
}

func (r uneven) expect(what string, node int, path string, requests, status, want int, change func(*http.Request)) {
	r.Helper()
	if got := r.all.Burst(r.Context(), r.c.Nodes[node:node+1], path, requests, change).Status(status); got != want {
		r.Errorf("%s %s: node %d answered %d of %d with %d, want %d", path, what, node+1, got, requests, status, want)
	}
}

func (r uneven) knows(node int, zone string, used int) {
	r.Helper()
	redistest.Eventually(r, "a node knows of another one's use of "+zone, func() bool {
		if s := status(r.T, r.c.Nodes[node], zone); s.SyncRate != "strict" {
			return s.Known() == int64(used)
		}
		key := "127.0.0.1"
		if strings.HasPrefix(zone, "keep-") {
			key = "all"
		}
		got, err := usedOf(r.c.Nodes[node], zone, key)
		return err == nil && got == int64(used)
	})
}

func (r uneven) sent(node int, zone string) {
	r.Helper()
	redistest.Eventually(r, "a node has sent its counts of "+zone, func() bool { return status(r.T, r.c.Nodes[node], zone).Unsent == 0 })
}

func (r uneven) denies(node int, path string, change func(*http.Request)) {
	r.Helper()
	redistest.Eventually(r, "a node knows that all is spent of "+path, func() bool {
		return r.all.Burst(r.Context(), r.c.Nodes[node:node+1], path, 1, change).Status(http.StatusTooManyRequests) == 1
	})
}

// gets waits until a node has admitted so many. What it expects of the other one may deny for a
// moment.
func (r uneven) gets(node int, path string, want int) {
	r.Helper()
	redistest.Eventually(r, fmt.Sprintf("node %d admits %d of %s", node+1, want, path), func() bool {
		want -= r.all.Burst(r.Context(), r.c.Nodes[node:node+1], path, 1, nil).Status(http.StatusOK)
		return want == 0
	})
}

// guess has both nodes limit guesses, of which only the first one goes by responses.
func (r uneven) guess(guess string) {
	wrong := func(r *http.Request) { r.Header.Set("X-Wrong", "yes") }
	r.expect("right", 0, "/"+guess, 8, http.StatusOK, 8, nil)
	r.expect("wrong", 0, "/"+guess, 2, http.StatusUnauthorized, 2, wrong)
	r.sent(0, guess)
	r.expect("without the option", 1, "/"+guess, 1, http.StatusOK, 1, nil) // learns of the key
	r.knows(1, guess, 3)
	r.gets(1, "/"+guess, 1)
	r.sent(1, guess)
	r.expect("one that is refunded", 0, "/"+guess, 1, http.StatusOK, 1, nil)
	r.knows(0, guess, 4)
	r.expect("the last one", 0, "/"+guess, 3, http.StatusUnauthorized, 1, wrong)
	r.sent(0, guess)
	r.denies(1, "/"+guess, nil)
}

// ban has the first node ban a client, and the other one not.
func (r uneven) ban(ban string) {
	r.expect("until it is banned", 0, "/"+ban, 4, http.StatusOK, 2, nil)
	r.sent(0, ban)
	r.expect("where there is no ban", 1, "/"+ban, 1, http.StatusOK, 1, nil)
	r.knows(1, ban, 3)
	r.gets(1, "/"+ban, 7)
	r.expect("where there is no ban", 1, "/"+ban, 9, http.StatusOK, 0, nil)
}

// keep has the first node keep a share for who pays.
func (r uneven) keep(keep string) {
	r.expect("who doesn't pay", 0, "/"+keep, 9, http.StatusOK, 8, nil)
	r.sent(0, keep)
	r.expect("without the option", 1, "/"+keep, 1, http.StatusOK, 1, nil)
	r.knows(1, keep, 9)
	r.gets(1, "/"+keep, 1)
	r.expect("without the option", 1, "/"+keep, 3, http.StatusOK, 0, nil)
	r.sent(1, keep)
	r.denies(0, "/"+keep, pays)
}

// In the middle of a roll-out, one node has a new option and another one doesn't. They share the
// counts, and each goes by its own options: no node warns, and none is confused by what the other
// one writes.
func TestNodesOfWhichOneHasAnOption(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	variants := map[string]string{
		"window": "algorithm fixed_window\nsync_rate 50ms", "bucket": "algorithm token_bucket\nsync_rate 50ms", "log": "algorithm sliding_log\nsync_rate 50ms",
		"strict-window": "algorithm fixed_window\nsync_rate strict", "strict-bucket": "algorithm token_bucket\nsync_rate strict", "strict-log": "algorithm sliding_log\nsync_rate strict",
	}
	site := func(guess, ban, keep string) string {
		var parts []string
		for name, options := range variants {
			parts = append(parts, zone("guess-"+name, "limit 5/"+far, options, guess), zone("ban-"+name, options, ban), zone("keep-"+name, "key all\nlimit 10/"+far, options, keep))
		}
		return config(slowRedis(r), "@paying header X-Plan paid\n@wrong header X-Wrong yes\n"+zones(parts...)+"\nrespond @wrong 401")
	}
	c := start(t, 2, site("count_responses 401", "limit 2/"+far+"\nban 1h", "reserve @paying 20%"))
	reload(t, c.Nodes[1], site("", "limit 10/"+far, ""))
	both := uneven{t, c, client(t, 1)}
	for name := range variants {
		both.guess("guess-" + name)
		both.ban("ban-" + name)
		both.keep("keep-" + name)
	}
	for _, n := range c.Nodes {
		for _, line := range n.Log.With(`"level":"warn"`) {
			// Each zone here has a path of its own.
			if !strings.Contains(line, "is exact, and many backends") && regexp.MustCompile("(guess|ban|keep)-").MatchString(line) {
				t.Errorf("node %d: %s", n.Number, line)
			}
		}
	}
}
