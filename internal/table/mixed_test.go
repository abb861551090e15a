package table

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/algorithms/ledger"
)

// Whether a key is synced early goes by the limit of the request, and not by that of work without
// one: 3 of 5 are much, 3 of 50,000 are nothing.
func TestEarlySyncsGoByTheLimitOfTheRequest(t *testing.T) {
	const second = int64(time.Second)
	limit := func(n int64) algorithms.Limit {
		return algorithms.Params{Kind: algorithms.SlidingWindow, Limit: n, Window: time.Minute}.Compile()
	}
	spent := &ledger.Ledger{Synced: true, Cur: ledger.Count{Own: 3}, Attempts: 3}
	x := &syncState{at: t0, scale: 1}
	for n, want := range map[int64]bool{5: true, 24: true, 50_000: false} {
		if got := needsEarlySync(x, spent, limit(n), n-3, t0+second); got != want {
			t.Errorf("3 of %d unsent: early %v, want %v", n, got, want)
		}
	}
	b := (&SyncConfig{Params: algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 50_000, Window: time.Minute}, Rate: time.Second}).compile()
	x.scale = 3 // others have most of the traffic
	for _, test := range []struct {
		n, remaining, after int64
		want                bool
	}{
		{5, 0, second, true},
		{5, 0, second / 2, false}, // less than a grain of 5 has come in
		{50_000, 700, second, true},
		{50_000, 40_000, second, false},
		{50_000, 0, second / 100, false},
		{0, 0, second, true},
	} {
		if got := b.needsRefresh(x, limit(test.n), test.remaining, t0+test.after); got != test.want {
			t.Errorf("%d of %d left after %v: refresh %v, want %v", test.remaining, test.n, time.Duration(test.after), got, test.want)
		}
	}
}

// A table that is full of keys with one limit is no obstacle to another: a sketch that is made for
// a burst counts in whole windows where limits are mixed.
func TestTheSketchOfMixedLimitsSuitsThemAll(t *testing.T) {
	bucket := func(n int64) algorithms.Params {
		return algorithms.Params{Kind: algorithms.TokenBucket, Limit: n, Burst: 10, Window: time.Hour}
	}
	tab := of[algorithms.BucketState](bucket(60), 1)
	tab.Configure(SyncConfig{Params: bucket(60), Mixed: true}, 1)
	take := func(key int, n int64) bool {
		return tab.Take(bucket(n).Compile(), KeyOf(raw(key)), raw(key), t0, 1, 0).Allowed
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
