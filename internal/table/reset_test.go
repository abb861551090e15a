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

// What is taken out while a reset is applied has the names that its counts belong to: the usual
// ones with what was spent before, those of the reset with nothing.
func TestNamesAndCountsChangeTogether(t *testing.T) {
	const keyCount, spent = 20_000, 5
	p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 10, Window: time.Hour}
	tab := New[algorithms.WindowState](p.Kind, keyCount)
	tab.Configure(SyncConfig{Params: p, Rate: time.Second}, keyCount)
	now := time.Date(2026, 5, 1, 12, 30, 0, 0, time.UTC).UnixNano()
	for i := range keyCount {
		raw := binary.BigEndian.AppendUint32(nil, uint32(i))
		tab.Take(p.Compile(), keys.KeyOf(raw), raw, now, spent, 0)
	}
	check := func() (left bool) {
		tab.Tick()
		messages := tab.Drain(now, 1000, false, nil)
		for _, m := range messages {
			if under := m.EpochStamp() != 0; under != (m.Total == 0) {
				t.Errorf("a message with %d requests, under a reset: %t", m.Total, under)
				return false
			}
			left = left || m.EpochStamp() == 0
		}
		tab.Fail(messages)
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
		t.Error("a message has the usual name after the reset")
	}
}
