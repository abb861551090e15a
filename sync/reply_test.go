package ratesync

import (
	"math"
	"strings"
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

// FuzzPushReply: whatever answers in Redis' place, counters stay counters, and what was
// admitted here is still known to be.
//
// no clock: settle says what time it is.
func FuzzPushReply(f *testing.F) {
	for _, seed := range []string{
		"1795249670\n0\n1\n3 4\n\n0 0", "1795249670\n0\n\n7 9 2.500\n\n1 1", "1795249670\n0\n\n7 9 1e308\n\n1 1", "1795249670\n0\n!\nWRONGTYPE Operation\n\n0 0", "1\n1\n9\n2 2\n9\n2 2",
		"1795249670\n0\n-5\n-9223372036854775808 -1\nx\nNaN inf nan 9223372036854775807", "\n\n\n1 1 1e308 1795249670000", "", "\n\n\n\n\n\n\n\n",
		"1795249670\n0\n1\n9223372036854775807 9223372036854775807 9e99 1795249670000\n\n9223372036854775807 1",
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
		messages := tab.Drain(now, 100, false, nil)
		if len(messages) == 0 {
			t.Fatal("a dirty key is not sent")
		}
		// As many lines as are wanted, where there are enough.
		lines := strings.SplitAfter(reply, "\n")
		l := new(pushCall)
		if l.read(strings.TrimSuffix(strings.Join(lines[:min(len(lines), 2+2*len(messages))], ""), "\n"), messages) == nil {
			tab.Ack(now, l.answers)
		} else {
			tab.Fail(messages)
		}
		now += int64(time.Second)
	}
	if own := tab.Totals(now).Own; own != admitted {
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
