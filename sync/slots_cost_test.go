//go:build chaos

package ratesync

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// The cost of gauges is measured with so many keys, for so long: keys that only run are told each
// Refresh, in the next cycle.
const (
	busyKeys = 10_000
	busyTime = 2 * (gauge.Refresh + time.Second)
)

// slotNodeAt is a node at a server.
func slotNodeAt(t *testing.T, r *redistest.Server, rate time.Duration) *slotNode {
	client := r.Client()
	client.Options().ContextTimeoutEnabled = true
	t.Cleanup(func() { _ = client.Close() })
	n := newSlotNode(client, 5*time.Second, rate, false)
	t.Cleanup(func() {
		n.src.Detach()
		n.rep.Close()
	})
	return n
}

// cpuOfSlots is the time that the server has used, in seconds.
func cpuOfSlots(r *redistest.Server) (sum float64) {
	for line := range strings.SplitSeq(r.Do("INFO", "cpu").(string), "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			n, _ := strconv.ParseFloat(value, 64)
			sum += n
		}
	}
	return sum
}

// What a key costs Redis: nothing where nobody uses it, less where its requests only run than where
// they come and go. It prints what docs/internals/costs.md has.
func TestCostOfBusyKeys(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	a, b := slotNodeAt(t, r, time.Second), slotNodeAt(t, r, time.Second)
	keys := make([]string, busyKeys)
	for i := range keys {
		keys[i] = fmt.Sprint("key", i)
		b.take(keys[i]) // runs on the other node all the time
	}
	measure := func(name string, change func(key string)) (share, calls float64) {
		redistest.Pause(gauge.Refresh) // what was before is told
		began, before, sent := time.Now(), cpuOfSlots(r), r.Calls("evalsha")
		for time.Since(began) < busyTime {
			next := time.Now().Add(time.Second)
			for i, key := range keys {
				if change(key); i%100 == 0 {
					redistest.Pause(time.Until(next) / time.Duration(2*(len(keys)-i)/100+2))
				}
			}
			redistest.Pause(time.Until(next))
		}
		took := time.Since(began).Seconds()
		share, calls = 100*(cpuOfSlots(r)-before)/took, float64(r.Calls("evalsha")-sent)/took
		t.Logf("%s: %d keys take %.2f %% of a core of Redis, in %.0f calls a second", name, len(keys), share, calls)
		return share, calls
	}
	_, idle := measure("they run", func(string) {})
	_, busy := measure("requests come and go", func(key string) {
		if a.has(key) > 0 {
			a.free(key)
		} else {
			a.take(key)
		}
	})
	for _, key := range keys {
		a.free(key)
		b.free(key)
	}
	_, none := measure("nobody uses them", func(string) {})
	if none >= idle || idle >= busy {
		t.Errorf("%.1f, %.1f and %.1f calls a second, want more each", none, idle, busy)
	}
}
