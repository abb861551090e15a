package scenario

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/sim"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// comesBack has a client spend its limit on one node, after it was on another one, and come back to
// that one after a while, with requests a time apart. It returns how many of them pass.
func comesBack[S any](kind algorithms.Kind, away, apart, latency time.Duration, seed uint64) (passed int) {
	p := algorithms.Params{Kind: kind, Limit: 100, Window: time.Hour}
	w, l, k := sim.NewNetwork(epoch+int64(sec), latency, seed), p.Compile(), keysOf(1)[0]
	tables, _ := joinAll[S](w, 2, p, table.SyncConfig{Interval: sec}, false)
	at := w.Now() + 2*int64(sec)
	ask := func(node int) bool {
		w.Until(at)
		return tables[node].Take(l, k.key, k.raw, at, 1, 0).Allowed
	}
	ask(1)
	at += int64(sec)
	for range 150 {
		ask(0)
		at += int64(20 * time.Millisecond)
	}
	at += int64(away)
	for range 50 {
		if ask(1) {
			passed++
		}
		at += int64(apart)
	}
	return passed
}

// A client that has spent its limit and comes to a node that has not replies of it for an interval
// or more gets through with its first request, and with those that come until Redis has answered:
// at most a journey there and back later, which take one and a half times the mean here.
func TestWhatPassesOnANodeThatHasNotHeardOfAClient(t *testing.T) {
	const latency = 5 * time.Millisecond
	for _, kind := range counting {
		run := algorithms.ByState(kind, comesBack[algorithms.WindowState], comesBack[algorithms.BucketState], comesBack[algorithms.LogState])
		for _, apart := range []time.Duration{latency / 5, latency, 3*latency + 1} {
			least, most := 1000, 0
			for seed := range uint64(20) {
				n := run(kind, time.Duration(4+seed)*sec, apart, latency, seed)
				least, most = min(least, n), max(most, n)
			}
			t.Logf("%v: %d to %d pass that come %v apart, at a round trip of %v", kind, least, most, apart, 2*latency)
			if bound := 1 + int(3*latency/apart); least < 1 || most > bound {
				t.Errorf("%v: %d to %d pass that come %v apart, want 1 to %d", kind, least, most, apart, bound)
			}
		}
	}
}
