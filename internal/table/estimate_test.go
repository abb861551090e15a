package table

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// Whether a key is synced early goes by the limit of the request, and not by that of work without
// one: 3 of 5 are much, 3 of 50,000 are nothing.
func TestEarlySyncsGoByTheLimitOfTheRequest(t *testing.T) {
	const second = int64(time.Second)
	limit := func(n int64) algorithms.Limit {
		return algorithms.Params{Kind: algorithms.SlidingWindow, Limit: n, Window: time.Minute}.Compile()
	}
	spent := &algorithms.Ledger{Synced: true, Cur: algorithms.EpochCount{Own: 3}, Attempts: 3}
	const t0 = int64(1e18)
	x := &estimate{At: t0, scale: 1}
	for n, want := range map[int64]bool{5: true, 24: true, 50_000: false} {
		if got := x.NeedsSync(spent, limit(n), n-3, t0+second, 1); got != want {
			t.Errorf("3 of %d unsent: early %v, want %v", n, got, want)
		}
	}
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
		if got := x.NeedsRefresh(time.Second, limit(test.n), test.remaining, t0+test.after); got != test.want {
			t.Errorf("%d of %d left after %v: refresh %v, want %v", test.remaining, test.n, time.Duration(test.after), got, test.want)
		}
	}
}
