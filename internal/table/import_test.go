package table

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// Requests of one key bring in what the store says in any order. What was said first is not
// believed after what was said later: another node would be taken to reserve what it has settled.
func TestAnEarlierWordOfTheStoreIsNotImported(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 20, Window: time.Hour, Reserves: true}
	tab := New[algorithms.WindowState](p.Kind, 10)
	tab.Configure(SyncConfig{Params: p, Rate: time.Second}, 10)
	says := func(call, spent, reserved int64) {
		tab.Import(p.Compile(), keys.KeyOf(raw(1)), raw(1), t0, call, []algorithms.Report{{Epoch: t0 / int64(time.Hour), Remote: spent, Reserved: reserved}})
	}
	for _, c := range []struct{ call, spent, reserved, left int64 }{{2, 5, 0, 15}, {1, 9, 4, 15}, {2, 6, 0, 14}, {3, 9, 4, 11}, {4, 5, 0, 15}, {3, 9, 4, 15}} {
		says(c.call, c.spent, c.reserved)
		left, _ := tab.Room(p.Compile(), keys.KeyOf(raw(1)), raw(1), t0)
		if n := tab.Unsettled().Len(); left != c.left || (n > 0) != (c.left == 11) {
			t.Errorf("call %d: %d are left, and %d keys have something reserved; want %d left", c.call, left, n, c.left)
		}
	}
}

// What a sync has told of others is settled when the store says so.
func TestWhatASyncHasToldIsSettledByTheStore(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 20, Window: time.Hour, Reserves: true}
	tab := New[algorithms.WindowState](p.Kind, 10)
	tab.Configure(SyncConfig{Params: p, Rate: time.Second}, 10)
	key, epoch := keys.KeyOf(raw(1)), t0/int64(time.Hour)
	tab.Room(p.Compile(), key, raw(1), t0)
	tab.unsettled.setOthers(key, epoch, 3)
	for _, c := range []struct {
		reserved int64
		keys     int
	}{{2, 1}, {0, 0}} {
		tab.Import(p.Compile(), key, raw(1), t0, 1, []algorithms.Report{{Epoch: epoch, Remote: 5, Reserved: c.reserved}})
		if n := tab.Unsettled().Len(); n != c.keys {
			t.Errorf("the store says %d are reserved: %d keys have some, want %d", c.reserved, n, c.keys)
		}
	}
}
