package limits

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// A request is admitted as long as all together have used less than what it sees: the limit without
// the reserves that are not for it. So none but its own class can take a reserve.
//
// no clock: each request says what time it is.
func TestNobodyTakesWhatIsReservedForOthers(t *testing.T) {
	number := 0
	rapid.Check(t, func(rt *rapid.T) {
		number++
		s := config.Settings{
			Name: fmt.Sprint("reserve ", number), Key: "all", IPv4Prefix: 32, IPv6Prefix: 64, MaxKeys: 1000, SyncRate: config.Local, SubWindows: 1,
			Kind:   rapid.SampledFrom([]algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow, algorithms.SlidingLog, algorithms.TokenBucket, algorithms.GCRA}).Draw(rt, "kind"),
			Limits: []config.Rate{{Limit: rapid.Int64Range(0, 30).Draw(rt, "limit"), Window: time.Minute}},
		}
		if s.Kind == algorithms.TokenBucket || s.Kind == algorithms.GCRA {
			s.Burst = rapid.Int64Range(0, 40).Draw(rt, "burst")
		}
		shares := rapid.SliceOfN(rapid.Float64Range(0.0001, 0.3), 1, 3).Draw(rt, "shares")
		var err error
		if s.Reserve, err = config.Reserves(shares); err != nil {
			rt.Fatal(err)
		}
		o := ZoneOptions{Settings: s, Logger: zap.NewNop(), Once: new(warning.Once)}
		for i := range shares {
			o.ClassMatchers = append(o.ClassMatchers, caddyhttp.MatcherSets{{caddyhttp.MatchHeader{fmt.Sprint("Class-", i): {"*"}}}})
		}
		z, err := NewZone(o)
		if err != nil {
			rt.Fatal(err)
		}
		defer z.Release()
		whole := &z.AllLimits[0]
		now := clock.Now()
		size := whole.Effective.Size
		k, _ := z.KeyOf(request(""))
		for range rapid.IntRange(1, 150).Draw(rt, "requests") {
			if rapid.IntRange(0, 9).Draw(rt, "pause") == 0 {
				now += rapid.Int64Range(0, int64(90*time.Second)).Draw(rt, "for")
			}
			r, sees := request(""), size
			for i := range shares {
				if rapid.Bool().Draw(rt, "is of the class") {
					r.Header.Set(fmt.Sprint("Class-", i), "yes")
				} else {
					sees -= s.Reserve[i].Of(size)
				}
			}
			sees = max(sees, min(size, 1))
			used := size - whole.Take(keys.KeyOf(k.Raw), k.Raw, now, 0, 0).Remaining
			e, err := Evaluate([]*Zone{z}, r, now)
			if err != nil {
				rt.Fatal(err)
			}
			if admitted := !e.Denied; admitted != (used < sees && s.Limits[0].Limit > 0) {
				rt.Fatalf("%v: %d of %d used, of which the request sees %d: admitted %v", s.Kind, used, size, sees, admitted)
			}
			if d := e.Results()[0]; !e.Denied && d.Remaining != sees-used-1 {
				rt.Fatalf("%v: %d of %d used, of which the request sees %d: %d remain after it", s.Kind, used, size, sees, d.Remaining)
			}
			e.Free()
		}
	})
}

// A reserve is rounded up, and exactly what is written.
func TestReserves(t *testing.T) {
	for share, want := range map[float64][2]int64{0.07: {100, 7}, 0.2: {5, 1}, 0.0001: {1, 1}, 0.9: {1 << 53, 8106479329266893}, 0.29: {100, 29}, 0.57: {100, 57}} {
		all, err := config.Reserves([]float64{share})
		if err != nil || all[0].Of(want[0]) != want[1] {
			t.Errorf("%v of %d is %v, %v, want %d", share, want[0], all, err, want[1])
		}
	}
	if _, err := config.Reserves([]float64{0.3, 0.3, 0.3}); err != nil {
		t.Errorf("three times 30%%: %v", err)
	}
}
