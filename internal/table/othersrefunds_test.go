package table

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// Refunds of others that don't shorten one's own reservations: what this node has reserved in a
// bucket above what another one had moves down with the other's refund, and ends to count sooner.
// Else it would be refunded though it has drained, out of what was taken since.
func TestRefundsOfOthersShortenOnesOwnReservations(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA} {
		for _, c := range []struct {
			refunded, seconds, back int64
		}{
			{0, 0, 50}, {0, 50, 50}, {0, 51, 49}, {0, 99, 1}, {0, 100, 0}, // from 50 on
			{50, 0, 50}, {50, 1, 49}, {50, 49, 1}, {50, 50, 0}, {50, 60, 0}, // at once
			{30, 20, 50}, {30, 21, 49}, {30, 69, 1}, {30, 70, 0}, {30, 90, 0}, // from 20 on
		} {
			p := algorithms.Params{Kind: kind, Limit: 60, Window: time.Minute, Burst: 200, Reserves: true}
			s, a, other := newStore(), costedOf[algorithms.BucketState](p, 1), costedOf[algorithms.BucketState](p, 1)
			all := []*talker[algorithms.BucketState]{{Table: other.Table, name: "other"}, {Table: a.Table, name: "a"}}
			for _, n := range all {
				n.Configure(SyncConfig{Params: p, Rate: time.Second}, 10)
			}
			sync := func() {
				for _, n := range all {
					n.Take(a.limit, a.key, []byte("k"), a.now, 0, 0)
					n.sync(s, a.now)
				}
			}
			a.take(1, 1)
			a.settleOne()
			sync()
			a.now += int64(10 * time.Second)
			other.now = a.now
			if !other.take(50, 50-c.refunded) {
				t.Fatal("50 of 200 are denied")
			}
			if sync(); !a.take(50, 0) {
				t.Fatal("50 of 200 are denied, beside 50 of others")
			}
			if c.refunded > 0 {
				other.settleOne()
			}
			sync()
			a.now += c.seconds * int64(time.Second)
			a.Take(a.limit, a.key, []byte("k"), a.now, 60, 0) // since then
			before, _ := a.machine.Level(&a.stripe(a.key).slot(0).state, a.limit, a.now)
			a.settleOne()
			after, _ := a.machine.Level(&a.stripe(a.key).slot(0).state, a.limit, a.now)
			if got := before - after; got != float64(c.back) {
				t.Errorf("%s, %d of others refunded, settled after %d s: %v come back, want %d", kind, c.refunded, c.seconds, got, c.back)
			}
		}
	}
}
