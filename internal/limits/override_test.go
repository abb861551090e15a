package limits

import (
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/rates"
	"github.com/caddy-tide/ratelimit/internal/settings"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// In the place of an overridden limit, burst and queue keep their ratio to it, and an override is
// about the limit with its window.
func TestOverridesKeepRatios(t *testing.T) {
	for _, test := range []struct{ burst, queue, limit, to, wantBurst, wantQueue int64 }{
		{10, 0, 100, 1000, 100, 0},
		{10, 4, 100, 50, 5, 2},
		{10, 4, 100, 1, 1, 1},
		{10, 4, 100, 0, 1, 1},
		{10, 4, 0, 100, 10, 4},
		{0, 0, 100, 1000, 0, 0},
		{1 << 50, 0, 1, 1 << 50, 1 << 53, 0},
	} {
		minute, hour := rates.Rate{Limit: test.limit, Window: time.Minute}, rates.Rate{Limit: 7, Window: time.Hour}
		z, err := NewZone(ZoneOptions{
			Compiled: settings.Compiled{
				Name: "ratio", Key: "all", Kind: algorithms.TokenBucket, Limits: []rates.Rate{minute, hour}, Burst: test.burst, Queue: test.queue,
				Buckets: 1, MaxKeys: 100, IPv4Prefix: 32, IPv6Prefix: 64, SyncRate: rates.Local,
			},
			Sweep: time.Minute, Logger: zap.NewNop(), Once: new(warning.Once),
		})
		if err != nil {
			t.Fatal(err)
		}
		o := &control.Override{Rate: rates.Rate{Limit: test.to, Window: time.Minute}}
		all := new(Evaluation).limitsOf(z, httptest.NewRequest("GET", "/", nil), o)
		p := all[0].Params()
		if p.Limit != test.to || p.Burst != test.wantBurst || p.Queue != test.wantQueue || all[1].Rate != hour || all[1].IsOverridden {
			t.Errorf("%+v: %+v and %+v, want burst %d and queue %d, and the other limit as it is", test, p, all[1].Rate, test.wantBurst, test.wantQueue)
		}
		if z.limits[0].Rate != minute {
			t.Error("the zone's own limit has changed")
		}
		if all := new(Evaluation).limitsOf(z, httptest.NewRequest("GET", "/", nil), &control.Override{Unlimited: true}); len(all) > 0 {
			t.Errorf("unlimited leaves %d limits", len(all))
		}
		z.Release()
	}
}
