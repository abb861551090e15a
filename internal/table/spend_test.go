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
		table.Configure(SyncConfig{Params: p, Interval: rate}, 10)
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
			table.MakeOutgoing()
			updates := table.TakeUpdates(now, 1, 10, false, nil)
			table.Merge(now, now, updates, []cell.Reply{{Sum: cell.Sum{Epoch: updates[0].State.Epoch, Totals: []int64{first(updates) + 3}}}})
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

// What is reserved of a key is what this node has reserved and what others have, but for epochs
// that are too old to count.
func TestTheSumOfWhatIsReserved(t *testing.T) {
	r, key := new(Reservations), keys.KeyOf([]byte("a"))
	r.Add(key, 2, 7, t0+int64(time.Minute), int64(time.Minute))
	r.setOthers(key, 7, 3)
	r.setOthers(key, 6, 5)
	for oldest, want := range map[int64]int64{6: 10, 7: 5, 8: 2} {
		if got := r.Sum(key, t0, oldest); got != want {
			t.Errorf("from epoch %d on: %d, want %d", oldest, got, want)
		}
	}
}
