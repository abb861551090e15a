package ratesync

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sum is what Redis counts in all for the only counter in it.
func sum(t *testing.T, r *redistest.Server) int64 {
	t.Helper()
	client := r.Client()
	var total int64
	for _, key := range client.Keys(context.Background(), "test:*:z:*").Val() {
		total += first(client.HGet(context.Background(), key, "sum").Val())
	}
	return total
}

// notSent are the lines about last counts that could not be sent.
func (n *rnode) notSent() []observer.LoggedEntry {
	return n.logs.FilterField(warning.Field(warning.NotSent)).All()
}

// A table that ends during an outage logs how much is lost with it, once for its zone, and
// nothing where nothing is.
func TestCountsThatCouldNotBeSentAreTold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		keys, requests int
		tables         int
		noticed        bool // the loss, before the table ends
	}{
		{"noticed", 3, 2, 1, true},
		{"noticed, in a zone with two rates", 3, 2, 2, true},
		{"not noticed yet", 3, 2, 1, false},
		{"not noticed yet, in a zone with two rates", 3, 2, 2, false},
		{"nothing to send", 0, 0, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := redistest.Start(t)
			a := startNode(t, clientOf(t, r.URL), ten, 20*time.Millisecond, wallClock)
			a.take("sent", 5)
			a.knows("sent", 5, 0)
			redistest.Eventually(t, "the node has said that it is there", func() bool { return a.rep.Status().Nodes == 1 })
			redistest.Eventually(t, "nothing is left to send", func() bool { return a.table.Totals(a.now()).Unsent == 0 })
			r.Kill()
			for i := range c.keys {
				a.take(fmt.Sprint("k", i), c.requests)
			}
			sources := []*TableSyncer{a.source}
			for range c.tables - 1 {
				another := *a
				another.table = tableOf[algorithms.WindowState](ten, 10_000)
				another.source = NewTableSyncer(another.table, a.source.spec)
				another.configure(20 * time.Millisecond)
				for i := range c.keys {
					another.take(fmt.Sprint("k", i), c.requests)
				}
				sources = append(sources, another.source)
			}
			if c.noticed {
				redistest.Eventually(t, "the loss is noticed", func() bool { return a.rep.unreachable.Load() == allShards })
			}
			for _, source := range sources {
				source.Detach()
			}
			lines := a.notSent()
			if c.keys == 0 {
				if len(lines) > 0 {
					t.Errorf("logged %v, want nothing: all is sent", lines)
				}
				return
			}
			if len(lines) != 1 {
				t.Fatalf("logged %v, want one line", lines)
			}
			got := lines[0].ContextMap()
			if got["zone"] != "z" || got["keys"] != int64(c.keys) || got["requests"] != int64(c.keys*c.requests) || !strings.Contains(got["reason"].(string), "; ") {
				t.Errorf("logged %v, want zone z, %d keys, %d requests and a reason", got, c.keys, c.keys*c.requests)
			}
		})
	}
}

// startLost starts a node of a long interval that has four units to send and has lost its server.
func startLost(t *testing.T, r *redistest.Server) *rnode {
	t.Helper()
	a := startNode(t, clientOf(t, r.URL), ten, time.Hour, wallClock)
	a.knows("k", 0, 0)
	r.Kill()
	a.take("k", 4)
	// A cycle at once; when that and another one have failed, the next is an hour away.
	a.configure(time.Hour)
	redistest.Eventually(t, "two syncs have failed", func() bool { return a.rep.Status().Failures >= 2 && a.source.current.Load().missed.Load() != 0 })
	return a
}

// The heartbeat finds out that Redis is back, and a zone with a long interval doesn't wait for its
// cycle to do so as well.
func TestASlowRateIsBackWithTheServer(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	a := startLost(t, r)
	redistest.Eventually(t, "the heartbeat has failed", func() bool { return a.rep.unreachable.Load() == allShards })
	r.Restart()
	redistest.Eventually(t, "the sync works again", func() bool { return a.source.UnavailableShards() == 0 && a.rep.Status().Up })
	if got := sum(t, r); got != 4 {
		t.Errorf("redis counts %d, want 4", got)
	}
}

// A zone with a long interval doesn't know yet that Redis is back when it ends, and sends its
// counts all the same.
func TestDetachSendsToAServerThatIsBack(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	a := startLost(t, r)
	r.Restart()
	redistest.Eventually(t, "the server is back", func() bool {
		return a.rep.Status().Nodes == 1 && a.rep.unreachable.Load() == 0 && a.rep.Status().Failing[HeartbeatName] == ""
	})
	a.source.Detach()
	if got := sum(t, r); got != 4 {
		t.Errorf("redis counts %d, want 4", got)
	}
	if lines := a.notSent(); len(lines) > 0 {
		t.Errorf("logged %v", lines)
	}
}

// A server that was away for long is asked at once when it is back, and not a second later, when
// the client tries again by itself.
func TestAServerThatIsBackIsAskedAtOnce(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	c := clientOf(t, r.URL+"?pool_size=2")
	r.Kill()
	for range 20 {
		if err := c.Ping(context.Background()).Err(); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("Ping() = %v without a server, want connection refused", err)
		}
	}
	r.Restart()
	if err := c.Ping(context.Background()).Err(); err != nil {
		t.Errorf("Ping() = %v at once after the server is back", err)
	}
}
