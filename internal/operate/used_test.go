package operate

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// What explain says is spent is what all nodes have spent, whatever becomes of the request.

// A pair is two nodes that have the same zones and share one Redis. The first one spends, and the
// second one, which has met no request, explains.
type pair struct {
	spends, explains []*limits.Zone
	redis            *limits.Redis // of the second one
}

// syncedPair starts a pair with one zone, of one algorithm.
func syncedPair(t *testing.T, s config.Settings) (p pair) {
	server := redistest.Start(t)
	for _, zones := range []*[]*limits.Zone{&p.spends, &p.explains} {
		client := server.Client()
		client.Options().ContextTimeoutEnabled = true
		t.Cleanup(func() { _ = client.Close() })
		redis := limits.BorrowRedis(client, limits.RedisOptions{Namespace: "test", Timeout: patience, StrictTimeout: patience, Logger: zap.NewNop()})
		// Nodes of one process would share the counters of one namespace.
		*zones = dressed(t, redis, func(_ int, o *limits.ZoneOptions) { o.Namespace = fmt.Sprintf("%p", redis) }, s)
		redis.Replicator.Start()
		limits.Starting.End() // no configuration starts here, which requests would wait for
		z := (*zones)[0]
		for l := range z.Counted {
			l.Configure(time.Minute, redis)
		}
		t.Cleanup(func() {
			for l := range z.Counted {
				l.Detach(redis)
			}
			z.Release()
			redis.Close()
		})
		p.redis = redis
	}
	return p
}

// eachPair runs a test with a zone of each algorithm, strict and at an interval, in which limit
// units of a key may be spent at once.
func eachPair(t *testing.T, limit int64, change func(*config.Settings), test func(t *testing.T, p pair)) {
	for _, kind := range kinds {
		for _, rate := range []config.SyncRate{config.Strict, config.SyncRate(50 * time.Millisecond)} {
			t.Run(fmt.Sprint(kind, " ", rate), func(t *testing.T) {
				t.Parallel()
				s := strictZone("used", kind, limit, syncedWindow)
				if s.SyncRate = rate; kind == algorithms.LeakyBucket {
					s.Queue = limit - 1
				}
				change(&s)
				test(t, syncedPair(t, s))
			})
		}
	}
}

// spend sends a request n times to the first node.
func (p pair) spend(t *testing.T, n int, r *http.Request) {
	t.Helper()
	for range n {
		e, err := limits.Evaluate(p.spends, r, clock.Now())
		if err != nil || e.Denied {
			t.Fatal(err, e)
		}
		e.Free()
	}
}

// explain has the second node explain a request once it knows that used units are spent of all
// limits. Nothing changes there.
func (p pair) explain(t *testing.T, used int64, r *http.Request) (z ExplainedZone) {
	t.Helper()
	before, last := holds(p.explains), int64(-1)
	redistest.Eventually(t, "what is spent has come", func() bool {
		h, err := ExplainZones(p.explains, r)
		if err != nil {
			t.Fatal(err)
		}
		z = h.Zones[0]
		last = slices.MinFunc(z.Limits, func(a, b ExplainedLimit) int { return cmp.Compare(a.Used, b.Used) }).Used
		return last >= used || p.explains[0].IsStrict()
	})
	if last != used {
		t.Errorf("%d used, want %d", last, used)
	}
	if now := holds(p.explains); !slices.Equal(now, before) {
		t.Errorf("the counters were %q and are %q", before, now)
	}
	return z
}

// A limit that comes with the request, or that an operator has lowered, may be below what is spent.
func TestExplainShowsWhatIsSpentBeyondTheLimit(t *testing.T) {
	for _, from := range []string{"", "{http.request.header.L}"} {
		eachPair(t, 9, func(s *config.Settings) { s.Limits[0].From = from }, func(t *testing.T, p pair) {
			p.spend(t, 8, withLimit("9"))
			for _, lower := range []string{"3", "0"} {
				if from == "" {
					override(t, p.redis, p.explains, map[string]string{"e": lower})
				}
				z := p.explain(t, 8, withLimit(lower))
				if l := z.Limits[0]; p.explains[0].Kind != algorithms.LeakyBucket && (l.Limit == 9 || l.Remaining != 0 || z.Decision != answer.Denied) {
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
	eachPair(t, 10, costs, func(t *testing.T, p pair) {
		p.spend(t, 1, withLimit("6"))
		if z := p.explain(t, 6, withLimit("11")); z.Decision != answer.TooLarge || z.Limits[0].Remaining != 4 {
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
	eachPair(t, 3, two, func(t *testing.T, p pair) {
		if p.spends[0].Kind.Traits().Queues {
			return // a full queue takes no denied request
		}
		p.spend(t, 3, request("e"))
		for range 2 {
			if z := p.explain(t, 3, request("e")); z.Decision != answer.Denied || z.Limits[1].Used != 3 || z.Limits[1].Remaining != 97 {
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
	defer override(t, nil, zones, map[string]string{"e": "3/30d"})()
	h, err := ExplainZones(zones, request("e"))
	if all := h.Zones[0].Limits; err != nil || !all[0].Overridden || all[0].Limit != 3 || all[1].Overridden {
		t.Errorf("explained as %+v, %v; want an override of the first limit", all, err)
	}
}
