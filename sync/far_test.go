package ratesync

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A Redis that is further away than the interval is not taken for a lost one: every key arrives
// there, and no call fails, the first ones with their connections included.
func TestKeysArriveAtARedisFurtherAwayThanTheInterval(t *testing.T) {
	const keys = 1000
	r := redistest.Start(t)
	proxy := faultproxy.Start(t, r.Addr)
	proxy.SetDelay(150 * time.Millisecond)
	a := startNode(t, clientOf(t, "redis://"+proxy.Addr), anHour, 100*time.Millisecond, wallClock)
	for round := range int64(3) {
		for i := range keys {
			a.take(fmt.Sprint("k", i), 1)
		}
		redistest.Eventually(t, "all keys arrive", func() bool { return sum(t, r) == keys*(round+1) })
	}
	redistest.Eventually(t, "all is answered", func() bool { return a.table.Totals(a.now()).Unsent == 0 })
	if s := a.rep.Status(); s.Failures > 0 {
		t.Errorf("%d calls failed and %d were answered, want none failed", s.Failures, s.Syncs)
	}
}
