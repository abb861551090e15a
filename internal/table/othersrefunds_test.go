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
			p := algorithms.Params{Kind: kind, Limit: 60, Window: time.Minute, Burst: 200}
			a := costedOf[algorithms.BucketState](p, 1)
			p.Reserves = true
			a.Configure(SyncConfig{Params: p, Rate: time.Second}, 10)
			sync := func(others, settled int64) {
				a.Tick()
				sent := a.Drain(a.now, 10, false, nil)
				if len(sent) == 0 {
					t.Fatal("nothing is sent")
				}
				mine := sent[0]
				answers := []Answer{{Message: mine, Held: mine.Total, Sum: mine.Total + others, SumAttempts: 9, SumSettled: mine.Settled + settled}}
				for _, m := range sent[1:] {
					answers = append(answers, Answer{Message: m})
				}
				a.Ack(a.now, answers)
			}
			a.take(1, 1)
			a.settleOne()
			a.now += int64(10 * time.Second)
			sync(0, 0)
			sync(50, 0) // another node has reserved 50
			if !a.take(50, 0) {
				t.Fatal("50 of 200 are denied")
			}
			if c.refunded > 0 {
				sync(50-c.refunded, 50-c.refunded)
			}
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
