package table

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A table that is full of keys with one limit is no obstacle to another: a sketch that is made for
// a burst counts in whole windows where limits are mixed.
func TestTheSketchOfMixedLimitsSuitsThemAll(t *testing.T) {
	bucket := func(n int64) algorithms.Params {
		return algorithms.Params{Kind: algorithms.TokenBucket, Limit: n, Burst: 10, Window: time.Hour}
	}
	tab := of[algorithms.BucketState](bucket(60), 1)
	tab.Configure(SyncConfig{Params: bucket(60), Mixed: true}, 1)
	take := func(key int, n int64) bool {
		return tab.Take(bucket(n).Compile(), keys.KeyOf(raw(key)), raw(key), t0, 1, 0).Allowed
	}
	take(0, 60)
	for range 20 {
		if !take(1, 60_000) {
			t.Fatal("a key beyond the bound is denied under 60000/1h")
		}
	}
	admitted := 0
	for range 20 {
		if take(2, 5) {
			admitted++
		}
	}
	if admitted != 5 {
		t.Errorf("%d of 20 admitted under 5/1h beyond the bound, want 5", admitted)
	}
}
