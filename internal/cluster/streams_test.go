//go:build chaos

package cluster_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A model streams answers of random usage, and sums up what it has sent to its end. A request with
// "held" waits in the middle of its stream until its client has gone.
type model struct {
	*httptest.Server
	sent, held atomic.Int64
}

func newModel(t *testing.T) *model {
	m := new(model)
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 1 + rand.IntN(3) {
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"...\"}}],\"usage\":null}\n\n")
			w.(http.Flusher).Flush()
		}
		if r.URL.Query().Has("held") {
			m.held.Add(1)
			<-r.Context().Done()
			return
		}
		tokens := rand.Int64N(3000)
		m.sent.Add(tokens)
		fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"total_tokens\":%d}}\n\ndata: [DONE]\n\n", tokens)
	}))
	t.Cleanup(m.Close)
	return m
}

// Three nodes behind a balancer stand before a model that streams 2,000 answers of random usage.
// They reload all the time, and one of them is killed while it has streams under way. In the end
// Redis has exactly the tokens that the model has sent, and the estimate for each stream that was
// cut by the kill: in strict zones and at an interval, and of all of it nothing is reserved but
// that.
func TestTwoThousandStreams(t *testing.T) {
	t.Parallel()
	const estimate, streams, cut = 1000, 2000, 20
	m, r := newModel(t), redistest.Start(t)
	zonesOf := map[string]string{"strict-sliding": "strict", "strict-fixed": "strict", "second-sliding": "200ms", "second-fixed": "1s"}
	text := ""
	for name, rate := range zonesOf {
		algorithm := "sliding_window"
		if strings.HasSuffix(name, "fixed") {
			algorithm = "fixed_window"
		}
		text += fmt.Sprintf("zone %s {\nkey {http.request.uri.query.k}\nlimit 100000000/%s\nsync_rate %s\nalgorithm %s\ncost %d\nresponse_cost json usage.total_tokens\n}\n", name, far, rate, algorithm, estimate)
	}
	site := config(slowRedis(r), "route {\n"+zones(text)+"\nreverse_proxy "+m.Listener.Addr().String()+" {\nflush_interval -1\n}\n}")
	nodes := start(t, 3, site).Nodes
	awaitFirstCycle(t, nodes)
	balancer := start(t, 1, balancing(nodes)).Nodes
	all := client(t, 8)
	knows := func(want int64) {
		t.Helper()
		for name := range zonesOf {
			awaitTotal(t, r, name, int(want))
		}
	}

	streamed(t, all, balancer, nodes, site, streams/2)
	knows(m.sent.Load())

	killed := nodes[2]
	var open sync.WaitGroup
	for range cut {
		open.Go(func() {
			response, err := http.Get("http://" + killed.Addr + "/?k=one&held")
			if err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
		})
	}
	eventually(t, "all streams are under way", func() error {
		if n := m.held.Load(); n != cut {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	knows(m.sent.Load() + cut*estimate)
	killed.Kill()
	open.Wait()

	streamed(t, all, balancer, nodes[:2], site, streams/2)
	knows(m.sent.Load() + cut*estimate)
	for name := range zonesOf {
		if settled := settledOf(t, r, name); settled != m.sent.Load() {
			t.Errorf("%s: %d are settled, want %d", name, settled, m.sent.Load())
		}
	}
}

// balancing is a template of a Caddyfile that sends requests to these nodes in turn. One that can't
// be reached is left out.
func balancing(nodes []*cluster.Node) string {
	to := ""
	for _, n := range nodes {
		to += " " + n.Addr
	}
	return config("", "route {\nreverse_proxy"+to+" {\nlb_policy round_robin\nlb_try_duration 20s\nflush_interval -1\n}\n}")
}

// streamed has clients read so many streams through a balancer, while the nodes reload.
func streamed(t *testing.T, all *cluster.Client, balancer, nodes []*cluster.Node, site string, streams int) {
	t.Helper()
	done := make(chan struct{})
	var reloads sync.WaitGroup
	reloads.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				reload(t, nodes[i%len(nodes)], strings.ReplaceAll(site, "cost 1000\n", fmt.Sprintf("cost %d\n", 1000+i%2)))
			}
		}
	})
	tally := all.Burst(t.Context(), balancer, "/?k=one", streams, nil)
	close(done)
	reloads.Wait()
	for _, n := range nodes {
		reload(t, n, site)
	}
	if got := tally.Status(http.StatusOK); got != streams {
		_, err := tally.Errors()
		t.Fatalf("%d of %d streams were answered, %d with 502, %d with 503 (first error: %v)", got, streams, tally.Status(502), tally.Status(503), err)
	}
}

// settledOf is what is settled of the totals of a zone in Redis.
func settledOf(t *testing.T, r *redistest.Server, zone string) (sum int64) {
	t.Helper()
	for key, total := range sums(t, r, zone) {
		words := strings.Fields(r.Do("HGET", key, "sum").(string))
		open, err := strconv.Atoi(words[4]) // total stamp end epoch open
		if err != nil {
			t.Fatal(err)
		}
		sum += int64(total - open)
	}
	return sum
}
