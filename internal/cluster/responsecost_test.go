//go:build chaos

package cluster_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// Three nodes stand before a model, which streams answers of random usage, and reload meanwhile: in
// the end each node knows exactly the tokens that the model says that it has sent.
func TestTokensOverThreeNodes(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("missing") {
			w.WriteHeader(http.StatusNotFound) // which costs nothing
			return
		}
		tokens := rand.Int64N(200)
		w.Header().Set("Content-Type", "text/event-stream")
		for range rand.IntN(4) {
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"{\\\"total_tokens\\\":7}\"}}],\"usage\":null}\n\n")
			w.(http.Flusher).Flush()
		}
		sent.Add(tokens)
		fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"total_tokens\":%d}}\n\ndata: [DONE]\n\n", tokens)
	}))
	defer model.Close()
	r := redistest.Start(t)
	algorithms := []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"}
	var parts []string
	for _, algorithm := range algorithms {
		parts = append(parts, keyedZone(algorithm, algorithm, "limit 10000000/"+far, "algorithm "+algorithm, "cost 100", "count_responses 2xx", "response_cost json usage.total_tokens", "response_cost_default 1000"))
	}
	site := config(slowRedis(r)+"\nsync_rate 100ms", "route {\n"+zones(parts...)+"\nreverse_proxy "+model.Listener.Addr().String()+" {\nflush_interval -1\n}\n}")
	c, all := start(t, 3, site), client(t, 8)
	awaitFirstCycle(t, c.Nodes)
	for _, algorithm := range algorithms {
		sent.Store(0)
		for i, n := range c.Nodes {
			tally := all.Burst(t.Context(), c.Nodes, "/"+algorithm+"?k=one", 40, nil)
			if got := tally.Status(http.StatusOK); got != 40 {
				t.Fatalf("%s: %d of 40 requests were answered", algorithm, got)
			}
			reload(t, n, strings.Replace(site, "response_cost_default 1000", fmt.Sprint("response_cost_default ", 2000+i), -1))
		}
		eventually(t, "all nodes know of what "+algorithm+" has let through", func() error {
			// A node that is asked for a key learns of the others.
			all.Burst(t.Context(), c.Nodes, "/"+algorithm+"?k=one&missing", 3, nil)
			for _, n := range c.Nodes {
				if z := status(t, n, algorithm); z.Known() != sent.Load() {
					return fmt.Errorf("node %d knows %d of %d: own %d, remote %d, unsent %d", n.Number, z.Known(), sent.Load(), z.Own, z.Remote, z.Unsent)
				}
			}
			return nil
		})
	}
}
