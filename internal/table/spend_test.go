package table

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// What a key has spent is that of the current epoch and the one before, of all nodes; what it asked
// for, on this node, is known where the table syncs.
func TestWhatAKeyHasSpent(t *testing.T) {
	for _, rate := range []time.Duration{0, time.Second} {
		p := sliding(5, time.Minute)
		table, raw, now := of[algorithms.WindowState](p, 10), []byte("a"), t0-t0%int64(time.Minute)
		table.Configure(SyncConfig{Params: p, Rate: rate}, 10)
		ask := func(n int) {
			for range n {
				table.Take(p.Compile(), keys.KeyOf(raw), raw, now, 1, 0)
			}
		}
		spend := func() (all []Spend) {
			table.EachSpend(now, func(s Spend) { all = append(all, s) })
			return all
		}
		is := func(when string, used, asked int64) {
			t.Helper()
			if rate == 0 {
				asked = 0
			}
			want := fmt.Sprint([]Spend{{Key: keys.KeyOf(raw), ID: keys.IDOf(raw), Used: used, Asked: asked}})
			if got := fmt.Sprint(spend()); got != want {
				t.Errorf("rate %s, %s: %s, want %s", rate, when, got, want)
			}
		}
		ask(4)
		is("after 4", 4, 4)
		ask(3)
		is("after 7", 5, 7)
		others := int64(0)
		if rate > 0 {
			others = 3
			table.Tick()
			said := table.Say(now, 1, 10, false, nil)
			table.Merge(now, now, said, []cell.Reply{{Sum: cell.Sum{Epoch: said[0].State.Epoch, Totals: []int64{first(said) + 3}}}})
		}
		is("after a sync", 5+others, 7)
		now += int64(time.Minute)
		is("in the next epoch", 5+others, 7)
		now += int64(time.Minute)
		if all := spend(); len(all) != 0 && all[0].Used != 0 {
			t.Errorf("rate %s: two epochs later there is %v", rate, all)
		}
	}
}

// A walk looks at no more slots under one lock than each other walk does, whatever the table holds:
// so no request waits for more than that.
func TestSpendIsReadFewAtATime(t *testing.T) {
	const keyCount = 40 * stripeCount * walk / 8
	p := fixed(5, time.Minute)
	table := of[algorithms.WindowState](p, keyCount)
	table.Configure(SyncConfig{Params: p}, keyCount)
	raw := make([]byte, 8)
	for i := range keyCount {
		raw[0], raw[1], raw[2] = byte(i), byte(i>>8), byte(i>>16)
		table.Take(p.Compile(), keys.KeyOf(raw), raw, t0, 1, 0)
	}
	last, row, most, all := -1, 0, 0, 0
	table.EachSpend(t0, func(s Spend) {
		stripe := int(s.Key.A >> 58)
		if table.stripes[stripe].mu.TryLock() {
			t.Fatal("a stripe is read without its lock")
		}
		if stripe != last {
			last, row = stripe, 0
		}
		row++
		most, all = max(most, row), all+1
	})
	if all != keyCount || most > walk {
		t.Errorf("%d of %d keys, up to %d under one lock, want %d at most", all, keyCount, most, walk)
	}
}
