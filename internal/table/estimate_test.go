package table

import (
	"github.com/caddy-tide/ratelimit/internal/keys"
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
	x := &estimate{At: t0, allPerMine: 1}
	for n, want := range map[int64]bool{5: true, 24: true, 50_000: false} {
		if got := x.NeedsSync(spent, limit(n), n-3, t0+second, 1); got != want {
			t.Errorf("3 of %d unsent: early %v, want %v", n, got, want)
		}
	}
	x.allPerMine = 3 // others have most of the traffic
	for _, test := range []struct {
		n, remaining, after int64
		want                bool
	}{
		{5, 0, second, true},
		{5, 0, second / 2, false}, // less than a part of 5 has come in
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

// What others have probably spent unseen is left out where what is counted is denied requests. So a
// key of them is worth one early sync when it is new, or was not synced lately, and none for each
// request: who is denied over and over causes no more calls than others.
func TestDenialsOfAKeyAreEarlyOnce(t *testing.T) {
	const second = int64(time.Second)
	for _, limit := range []int64{3, 1000} {
		alg := algorithms.Params{Kind: algorithms.FixedWindow, Limit: limit, Window: 30 * 24 * time.Hour}
		n, other, s := newNode("n", alg), newNode("other", alg), newStore()
		n.Configure(SyncConfig{Params: alg, Interval: time.Second, Early: true, NoEstimates: true}, 1000)
		n.SetMissedTwice(0)
		take(other.Table, alg, 1, t0)
		other.sync(s, t0)
		early := 0
		deny := func(now int64) {
			take(n.Table, alg, 1, now)
			if n.syncEarly(s, now) > 0 {
				early++
			}
		}
		for i := range int64(40) {
			deny(t0 + i*second/10)
		}
		n.sync(s, t0+4*second)
		deny(t0 + 5*second)
		if early != 1 {
			t.Errorf("limit %d: %d early syncs for 41 denied requests, want one for the first", limit, early)
		}
		if deny(t0 + 60*second); early != 2 {
			t.Errorf("limit %d: %d early syncs when it was not synced lately, want one more", limit, early-1)
		}
	}
}

// A key that denials fill further, by count_denied, is told early once when it is spent, and not
// with each of them. A request that is admitted makes its successors news again.
func TestDenialsThatCountAreEarlyOnce(t *testing.T) {
	alg := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 3, Window: 30 * 24 * time.Hour}
	n, s := newNode("n", alg), newStore()
	n.Configure(SyncConfig{Params: alg, Interval: time.Second, Early: true}, 1000)
	n.SetMissedTwice(0)
	early, now := 0, t0
	request := func() {
		d := take(n.Table, alg, 1, now)
		if !d.Allowed {
			n.Penalize(alg.Compile(), keys.KeyOf(raw(1)), d, 1)
		}
		if n.syncEarly(s, now) > 0 {
			early++
		}
		now += 20 * int64(time.Millisecond)
	}
	for range 3 {
		request()
	}
	if early != 3 {
		t.Errorf("%d early syncs of three admitted requests, want 3", early)
	}
	for early = 0; now < t0+int64(time.Second); {
		request()
	}
	if early > 1 {
		t.Errorf("%d early syncs for the denied requests of a second, want one at most", early)
	}
}
