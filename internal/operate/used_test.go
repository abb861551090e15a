package operate

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/config"
)

// What explain says is spent is what all nodes have spent, whatever becomes of the request.

// eachUsed runs a test with two nodes that have a zone of each algorithm, strict and at an
// interval, in which limit units of a key may be spent at once. The first one spends, and the
// second one, which has met no request, explains.
func eachUsed(t *testing.T, limit int64, change func(*config.Settings), test func(t *testing.T, spends, explains *recaller)) {
	for _, kind := range kinds {
		for _, rate := range []config.SyncRate{config.Strict, config.SyncRate(50 * time.Millisecond)} {
			s := strictZone("used", kind, limit, syncedWindow)
			if s.SyncRate = rate; kind == algorithms.LeakyBucket {
				s.Queue = limit - 1
			}
			change(&s)
			recallers(t, 2, plain, []config.Settings{s}, func(t *testing.T, nodes []*recaller) { test(t, nodes[0], nodes[1]) })
		}
	}
}

// admit sends a request n times.
func (n *recaller) admit(times int, r *http.Request) {
	n.t.Helper()
	for range times {
		if denied, d := n.ask(r); denied {
			n.t.Fatalf("%s: denied: %+v", n.zones[0].Kind, d)
		}
	}
}

// used explains a request where so many units are spent of all limits. Nothing changes on the node.
func (n *recaller) used(want int64, r *http.Request) ExplainedZone {
	n.t.Helper()
	n.sleep(time.Second) // what is spent has come
	before := holds(n.zones)
	h, err := ExplainZones(n.zones, r)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, l := range h.Zones[0].Limits {
		if l.Used != want {
			n.t.Errorf("%s, sync_rate %s: %d used, want %d", n.zones[0].Kind, n.zones[0].SyncRate, l.Used, want)
		}
	}
	if now := holds(n.zones); !slices.Equal(now, before) {
		n.t.Errorf("%s: the counters were %q and are %q", n.zones[0].Kind, before, now)
	}
	return h.Zones[0]
}

// A limit that comes with the request, or that an operator has lowered, may be below what is spent.
func TestExplainShowsWhatIsSpentBeyondTheLimit(t *testing.T) {
	for _, from := range []string{"", "{http.request.header.L}"} {
		eachUsed(t, 9, func(s *config.Settings) { s.Limits[0].From = from }, func(t *testing.T, spends, explains *recaller) {
			spends.admit(8, withLimit("9"))
			for _, lower := range []string{"3", "0"} {
				if from == "" {
					override(t, explains.redis, overrides(explains.zones, map[string]string{"e": lower}))
				}
				z := explains.used(8, withLimit(lower))
				if l := z.Limits[0]; explains.zones[0].Kind != algorithms.LeakyBucket && (l.Limit == 9 || l.Remaining != 0 || z.Decision != answer.Denied) {
					t.Errorf("explained as %+v, want denied by a limit of %s", z, lower)
				}
			}
		})
	}
}

// costs has requests cost what their header L says.
func costs(s *config.Settings) {
	s.Cost = config.Cost{Terms: []config.CostTerm{{Units: &config.Amount{From: "{http.request.header.L}"}}}, Default: 1}
}

// Of a request that no limit ever admits Redis is not asked, but explain asks what is spent.
func TestExplainShowsWhatIsSpentToARequestThatIsTooLarge(t *testing.T) {
	eachUsed(t, 10, costs, func(t *testing.T, spends, explains *recaller) {
		spends.admit(1, withLimit("6"))
		if z := explains.used(6, withLimit("11")); z.Decision != answer.TooLarge || z.Limits[0].Remaining != 4 {
			t.Errorf("explained as %+v, want too large, and 4 left", z)
		}
	})
}

// Without Redis explain says that it does not know what is spent, and what is too large stays that.
//
// bubble: recallers run there.
func TestExplainARequestThatIsTooLargeWithoutRedis(t *testing.T) {
	for _, share := range []float64{1, 0} {
		s := strictZone("large", algorithms.FixedWindow, 10, time.Hour)
		costs(&s)
		s.Enforce = config.Enforce(share)
		recallers(t, 1, plain, []config.Settings{s}, func(t *testing.T, nodes []*recaller) {
			nodes[0].server.SetError("LOADING Redis is loading the dataset in memory")
			h, err := ExplainZones(nodes[0].zones, withLimit("11"))
			if z := h.Zones[0]; err != nil || z.Unknown == "" || z.OnRedisLoss != "" || len(z.Limits) != 1 || z.Limits[0].Decision == answer.Admitted {
				t.Errorf("enforced for %v: %+v, %v; want denied without on_redis_loss, and why nothing is known", share, z, err)
			}
		})
	}
}

// Where denied requests count, explain does not count the one that it explains.
func TestExplainShowsWhatIsSpentBeforeADenialThatCounts(t *testing.T) {
	two := func(s *config.Settings) {
		s.CountDenied, s.Queue = true, 0
		s.Limits = append(s.Limits, config.Rate{Limit: 100, Window: 2 * syncedWindow})
	}
	eachUsed(t, 3, two, func(t *testing.T, spends, explains *recaller) {
		if spends.zones[0].Kind.Traits().Queues {
			return // a full queue takes no denied request
		}
		spends.admit(3, request("e"))
		for range 2 {
			if z := explains.used(3, request("e")); z.Decision != answer.Denied || z.Limits[1].Used != 3 || z.Limits[1].Remaining != 97 {
				t.Errorf("explained as %+v, want denied, and 3 of 100 used", z)
			}
		}
	})
}

// An override of one limit says so of that one.
func TestExplainShowsWhichLimitIsOverridden(t *testing.T) {
	s := config.Settings{Name: "z", SubWindows: 1, SyncRate: config.Local, MaxKeys: 10, Limits: []config.Rate{{Limit: 9, Window: syncedWindow}, {Limit: 90, Window: 2 * syncedWindow}}}
	zones := handler(t, nil, s)
	defer zones[0].Release()
	defer override(t, nil, overrides(zones, map[string]string{"e": "3/30d"}))()
	h, err := ExplainZones(zones, request("e"))
	if all := h.Zones[0].Limits; err != nil || !all[0].Overridden || all[0].Limit != 3 || all[1].Overridden {
		t.Errorf("explained as %+v, %v; want an override of the first limit", all, err)
	}
}
