package table

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// What is taken out while a reset is applied has the stamp that its counts belong to: none with
// what was spent before, that of the reset with nothing.
func TestStampsAndCountsChangeTogether(t *testing.T) {
	const keyCount, spent = 20_000, 5
	p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 10, Window: time.Hour}
	tab := New[algorithms.WindowState](p.Kind, keyCount)
	tab.Configure(SyncConfig{Params: p, Interval: time.Second}, keyCount)
	now := time.Date(2026, 5, 1, 12, 30, 0, 0, time.UTC).UnixNano()
	for i := range keyCount {
		raw := binary.BigEndian.AppendUint32(nil, uint32(i))
		tab.Take(p.Compile(), keys.KeyOf(raw), raw, now, spent, 0)
	}
	check := func() (left bool) {
		tab.MakeOutgoing()
		updates := tab.TakeUpdates(now, 1, 1000, false, nil)
		for i := range updates {
			state := &updates[i].State
			if under := state.Stamp != 0; under != (state.At(state.Epoch) == 0) {
				t.Errorf("a message with %v requests, under a reset: %t", state.Totals, under)
				return false
			}
			left = left || state.Stamp == 0
		}
		tab.Unanswered(updates)
		return left
	}
	if !check() {
		t.Fatal("nothing is taken out before the reset")
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		tab.Reset(now, &reset.Set{All: reset.Reset{Stamp: now / 1000, At: now, Until: now + int64(time.Hour)}})
	})
	for check() {
	}
	wg.Wait()
	if check() {
		t.Error("a message has no stamp after the reset")
	}
}
