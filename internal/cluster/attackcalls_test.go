//go:build chaos

package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A vector is a way to have a denied client cost Redis more than a call a second for each node and
// set of limits.
type vector struct {
	name  string
	zones []string
	// vary changes a request; nil leaves it as it is.
	vary func(*http.Request)
	sets int // of limits that are denied, with their keys
}

// header gives each request one of so many values of a header.
func header(name string, values int) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, fmt.Sprint(1+rand.N(values))) }
}

func vectors() []vector {
	const k, byHeader, limit, wide = "key {http.request.uri.query.k}", "key {http.request.header.X-K}", "limit 3/" + far, "limit 1000000/" + far
	of := func(options ...string) []string {
		return []string{k + "\n" + strings.Join(options, "\n")}
	}
	return []vector{
		{"fixed_window", of(limit, "algorithm fixed_window"), nil, 1},
		{"sliding_log", of(limit, "algorithm sliding_log"), nil, 1},
		{"gcra", of(limit, "algorithm gcra"), nil, 1},
		{"two limits", of(limit + " 1000/1h"), nil, 1},
		{"limits that requests bring", of("limit {http.request.header.X-K}/"+far, "limit_default 3/"+far), header("X-K", 4), 4},
		{"classes of reserve", of("limit 5/"+far, "reserve @paid 40%"), header("X-Paid", 2), 2},
		{"five zones", append(of(limit), k+"\n"+wide, k+"\n"+wide, k+"\n"+wide, k+"\n"+wide), nil, 1},
		{"another key in a zone before", append([]string{byHeader + "\n" + wide}, of(limit)...), header("X-K", 1_000_000), 1},
		{"a zone in shadow mode", append([]string{k + "\n" + wide + "\nenforce off"}, of(limit)...), nil, 1},
		{"shadow mode", of(limit, "enforce off"), nil, 1},
		{"a zone with count_denied", append([]string{k + "\n" + wide + "\ncount_denied"}, of(limit)...), nil, 1},
		{"slots", of(limit, "concurrent 1000"), nil, 1},
		{"a ban", of(limit, "ban 1h after 10/1h"), nil, 1},
		{"keys", []string{byHeader + "\n" + limit}, header("X-K", 10), 10},
		{"early data", of(limit), func(r *http.Request) { r.Header.Set("Early-Data", "1") }, 1},
	}
}

// A flood of denied requests over three nodes costs Redis a call a second for each node and set of
// limits, whatever the client varies.
func TestAttackOnRedis(t *testing.T) {
	t.Parallel()
	vectors := vectors()
	r := redistest.Start(t)
	site := "@paid header X-Paid 1\nrate_limit {\n"
	for i, v := range vectors {
		for j, z := range v.zones {
			site += fmt.Sprintf("zone v%d_%d {\nmatch {\npath /v%d\n}\nsync_rate strict\n%s\n}\n", i, j, i, z)
		}
	}
	c, all := start(t, 3, config(slowRedis(r), site+"}")), client(t, 60)
	for i, v := range vectors {
		path := fmt.Sprintf("/v%d?k=a", i)
		// Until each set of limits has been denied.
		for range 20 {
			all.Burst(t.Context(), c.Nodes, path, 30, v.vary)
		}
		calls, began := r.Calls("evalsha"), time.Now()
		// most is how many calls there may be. A busy machine takes longer for twice as many
		// requests.
		most := func() int { return len(c.Nodes) * (int(time.Since(began).Seconds()) + 2) * (v.sets + 6) }
		var wg sync.WaitGroup
		var sent, admitted atomic.Int64
		for range 4 {
			wg.Go(func() {
				for time.Since(began) < time.Second || sent.Load() < 2*int64(most()) && time.Since(began) < time.Minute {
					got := all.Burst(t.Context(), c.Nodes, path, 12, v.vary)
					sent.Add(int64(got.Sent()))
					admitted.Add(int64(got.Admitted()))
				}
			})
		}
		wg.Wait()
		// A denial is remembered for a second from when its call was made. Heartbeats, bans and
		// slots come on top, a few a second and node.
		made, bound := r.Calls("evalsha")-calls, most()
		t.Logf("%s: %d calls for %d requests in %s", v.name, made, sent.Load(), time.Since(began).Round(time.Millisecond))
		if made > bound || sent.Load() < int64(2*bound-bound/4) {
			t.Errorf("%s: %d calls for %d denied requests, want %d at most", v.name, made, sent.Load(), bound)
		}
		if n := admitted.Load(); n > 0 && v.name != "shadow mode" {
			t.Errorf("%s: %d requests were admitted after the limit was spent", v.name, n)
		}
	}
}
