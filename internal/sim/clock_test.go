package sim

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
)

// Nodes whose clocks are wrong, or step while they hold counts, agree with the store on the time
// within a round trip, from their next heartbeat on.
func TestNodesAgreeOnTheTimeWithinARoundTrip(t *testing.T) {
	const latency = 5 * time.Millisecond
	sc := Windows{
		Algorithm: Sliding(1000, 60*sec), Model: Shipped, Rate: sec, Nodes: 4, Latency: latency,
		Skew:  []time.Duration{-30 * sec, 0, 30 * sec, 200 * time.Millisecond},
		Steps: []Step{{0, 10 * sec, 20 * sec}, {1, 10 * sec, -20 * sec}, {2, 10 * sec, time.Hour}, {3, 10 * sec, -40 * sec}},
	}
	w := newWorld(sc)
	agree := func(when time.Duration) {
		t.Helper()
		w.until(epoch + int64(when))
		w.now = epoch + int64(when)
		for _, n := range w.nodes {
			if off := time.Duration(n.clock()-w.now) + n.table.Offset(); off.Abs() > 3*latency {
				t.Errorf("%v from the start node %d is %v ahead of the store, want at most %v", when, n.index, off, 3*latency)
			}
			n.take(0)
		}
	}
	agree(sec / 2)
	agree(9 * sec)
	agree(10*sec + cycle.Heartbeat + sec/10)
	agree(60 * sec)
}
