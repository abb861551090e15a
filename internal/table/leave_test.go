package table

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A client that goes away has waited for as long as it has by its own clock, whatever steps the
// table's clock took meanwhile.
func TestAClientLeavesAQueueOverAStep(t *testing.T) {
	queue := algorithms.Params{Kind: algorithms.LeakyBucket, Limit: 10, Window: time.Second, Queue: 3}
	key := raw(1)
	for _, test := range []struct {
		name   string
		step   time.Duration
		waited time.Duration // of the 300ms until its turn
		freed  bool
	}{
		{"no step", 0, 200 * time.Millisecond, true},
		{"a step ahead", time.Hour, 200 * time.Millisecond, true},
		{"a step back", -time.Hour, 200 * time.Millisecond, true},
		{"its turn has come", -time.Hour, 300 * time.Millisecond, false},
	} {
		l := queue.Compile()
		tab := of[algorithms.BucketState](queue, 10)
		tab.Configure(SyncConfig{Params: queue, Rate: time.Second}, 10)
		var last Taken
		for range 4 {
			last = tab.Take(l, keys.KeyOf(key), key, t0, 1, 0)
		}
		now := t0 + int64(test.waited)
		if test.step != 0 {
			tab.setOffset(now, test.step, true)
		}
		before := tab.Take(l, keys.KeyOf(key), key, now, 0, 0).Remaining
		tab.Leave(l, keys.KeyOf(key), last, now, 1)
		if got := tab.Take(l, keys.KeyOf(key), key, now, 0, 0).Remaining - before; (got == 1) != test.freed {
			t.Errorf("%s: the last of four leaves after %v: %d slots freed, want freed %v", test.name, test.waited, got, test.freed)
		}
	}
	tab := newTable(10, hour) // a kind without a queue has none to leave
	tab.Leave(hour.Compile(), keys.KeyOf(key), take(tab, hour, 1, t0), t0, 1)
	if got := take(tab, hour, 1, t0).Remaining; got != hour.Limit-2 {
		t.Errorf("a fixed window after Leave: %d left, want %d", got, hour.Limit-2)
	}
}
