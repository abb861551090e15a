package table

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

// What the store has confirmed is not unsent, until it is unsent again because the store has
// forgotten.
func TestUnsent(t *testing.T) {
	alg := sliding(100, time.Hour)
	tab := newTable(10, alg)
	tab.Configure(SyncConfig{Params: alg, Rate: time.Second}, 10)
	want := func(when string, now int64, keys int, requests int64) {
		t.Helper()
		if k, r, _ := tab.Unsent(now); k != keys || r != requests {
			t.Errorf("%s: Unsent() = %d, %d, want %d keys and %d requests", when, k, r, keys, requests)
		}
	}
	corrects := func(when string, want int) {
		t.Helper()
		if _, _, got := tab.Unsent(t0); got != want {
			t.Errorf("%s: %d keys have corrections alone, want %d", when, got, want)
		}
	}
	syncNode := func(confirmed bool) {
		tab.Tick()
		said := tab.Say(t0, 1, 100, false, nil)
		if !confirmed {
			tab.Unanswered(said)
			return
		}
		tab.Merge(t0, t0, said, alone(said, nil))
	}
	want("an empty table", t0, 0, 0)
	var taken Taken
	for i := range 3 {
		take(tab, alg, i, t0)
		taken = take(tab, alg, i, t0)
	}
	want("nothing was sent", t0, 3, 6)
	syncNode(false)
	want("sent in vain", t0, 3, 6)
	syncNode(true)
	want("all is confirmed", t0, 0, 0)
	corrects("all is confirmed", 0)
	for range 2 {
		tab.Refund(alg.Compile(), keys.KeyOf(raw(2)), taken, 1)
		want("what is confirmed is refunded", t0, 0, 0)
		corrects("one more of a key is refunded", 1)
	}
	syncNode(false)
	corrects("that is sent in vain", 1)
	syncNode(true)
	corrects("that is confirmed", 0)
	take(tab, alg, 1, t0)
	want("one more came", t0, 1, 1)
	tab.Resend()
	want("the store has forgotten", t0, 2, 5)
	want("no decision can use it any more", t0+int64(3*time.Hour), 0, 0)
}
