package ratesync

import (
	"math"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// sane fails unless a decision can be sent to a client.
func sane(t *testing.T, d algorithms.Decision, limit int64) {
	t.Helper()
	if d.Remaining < 0 || d.Remaining > limit || d.Retry < 0 || d.Next < 0 || d.Reset < 0 || d.Delay < 0 || !d.Allowed && d.Retry == 0 {
		t.Errorf("decision %+v of a limit of %d", d, limit)
	}
}

const replied = int64(1_795_249_670_000_000) // microseconds

// FuzzReply: whatever answers in Redis' place, counters stay counters, and what was
// admitted here is still known to be.
//
// no clock: settle says what time it is.
func FuzzReply(f *testing.F) {
	for _, seed := range []string{
		"1795249670 0\n\n\n", "1795249670 0\n\n\n1000 0 1500000000000 1 3 0 1795249670000000 10 3", "1795249670 0\n\n5 0 7 3 1 3\n0 0 0 9 -3 7 1795249670000000 10 9",
		"1795249670 0\n\n!\nWRONGTYPE Operation", "1795249670 0\n\n@\n1795249669000000", "1 1\n\n9 9 9 9 9 9\n9 9 9 9 9 9 9 9 9", "", "\n\n\n",
		"1795249670 0\n\n1 0 9223372036854775807 9223372036854775807 0 0\n0 0 0 9223372036854775807 -9223372036854775808 -1 0 0 0",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, reply string) {
		settle[algorithms.BucketState](t, algorithms.Params{Kind: algorithms.TokenBucket, Limit: 10, Window: time.Minute}, reply)
	})
}

// settle syncs a key a few times with a Redis that always says the same.
func settle[S any](t *testing.T, alg algorithms.Params, reply string) {
	t.Helper()
	now, raw := replied*int64(time.Microsecond), []byte("k")
	tab := tableOf[S](alg, 10)
	tab.Configure(table.SyncConfig{Params: alg, Rate: time.Second, Early: true}, 10)
	admitted := int64(0)
	for range 4 {
		taken := tab.Take(alg.Compile(), keys.KeyOf(raw), raw, now, 1, allWaits)
		sane(t, taken.Decision, 10)
		if taken.Allowed {
			admitted++
		}
		tab.Tick()
		c := NewSayCall(now)
		said := tab.Say(now, c.Seq, 100, false, nil)
		if len(said) == 0 {
			t.Fatal("a dirty key is not sent")
		}
		c.Say(NewSource(tab, SpecOf("z", alg)), Keys{}, &said[0], false)
		if c.Read(reply, &c.Answer) == nil {
			tab.Merge(now, c.Now*int64(time.Microsecond), said, c.Answer.Cells)
		} else {
			tab.Unanswered(said)
		}
		now += int64(time.Second)
	}
	if own := tab.Totals(now).Own; own < 0 || own > admitted {
		t.Errorf("%d admitted, and %d counted as own", admitted, own)
	}
	if math.IsNaN(levelOf(tab, alg, raw, now)) {
		t.Error("the level of a bucket is no number")
	}
}

func levelOf[S any](tab *table.Table[S], alg algorithms.Params, raw []byte, now int64) (level float64) {
	tab.With(keys.KeyOf(raw), func(s *S) { level = levelAt(alg, s, now) })
	return level
}
