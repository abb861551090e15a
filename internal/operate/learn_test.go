package operate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/limits"
)

// What explain says of other nodes, in zones that sync at an interval, is asked of Redis.

const rarely = config.SyncRate(10 * time.Second)

func intervalZone(name string, kind algorithms.Kind) config.Settings {
	s := strictZone(name, kind, 10, time.Hour)
	if s.SyncRate = rarely; kind == algorithms.LeakyBucket {
		s.Queue = 9
	}
	return s
}

// explain explains the next request of the key e.
func (n *recaller) explain() Explained {
	n.t.Helper()
	h, err := ExplainZones(n.zones, request("e"))
	if err != nil {
		n.t.Fatal(err)
	}
	return h
}

// all is everything in Redis.
func (n *recaller) all() (all []string) {
	for _, key := range n.server.Keys() {
		if n.server.Type(key) == "hash" {
			fields, _ := n.server.HKeys(key)
			for _, f := range fields {
				all = append(all, key+" "+f+" "+n.server.HGet(key, f))
			}
		} else if text, err := n.server.Get(key); err == nil {
			all = append(all, key+" "+text)
		}
	}
	slices.Sort(all)
	return all
}

// A node explains by what the others have sent to Redis since it last heard of them. What it
// decides by stays as it was, and nothing is written: in each algorithm, also in shadow mode, and
// by the ID.
//
// bubble: recallers run there.
func TestExplainAsksRedisWhatOthersHaveSpent(t *testing.T) {
	for _, kind := range kinds {
		for _, share := range []float64{1, 0} {
			s := intervalZone(fmt.Sprint("asked ", share), kind)
			s.Enforce = config.Enforce(share)
			s.Limits = append(s.Limits, config.Rate{Limit: 1000, Window: 2 * time.Hour})
			if kind == algorithms.LeakyBucket {
				s.Limits = s.Limits[:1]
			}
			recallers(t, 2, plain, []config.Settings{s}, func(t *testing.T, nodes []*recaller) {
				a, b := nodes[0], nodes[1]
				if z := a.explain().Zones[0]; !z.FromRedis || z.Limits[0].Used != 0 || z.Decision != answer.Admitted {
					t.Errorf("%v: nobody knows the key: %+v", kind, z)
				}
				a.ask(request("e"))
				a.sleep(12 * time.Second) // it has heard that nobody else has a request
				for range 9 {
					b.ask(request("e"))
				}
				b.sleep(time.Second)
				b.zones[0].AllLimits[0].Syncer.Wake()
				b.sleep(11 * time.Second) // b has sent
				before, there := holds(a.zones), a.all()
				z := a.explain().Zones[0]
				l := z.Limits[0]
				if !z.FromRedis || z.Unknown != "" || l.Used < 9 || *l.Remote < 8 && kind.Traits().Windowed || l.Remaining > 1 {
					t.Errorf("%v, enforced for %v: explained as %+v (remote %d), want the nine of the other node", kind, share, z, *l.Remote)
				}
				k, _ := a.zones[0].KeyOf(request("e"))
				if byID, ok, err := ExplainKey(a.zones[0], limits.KeyOfID(k.ID), nil); err != nil || !ok || byID.Zones[0].Limits[0].Used != l.Used {
					t.Errorf("%v: by ID %+v, %t, %v; want %d used", kind, byID, ok, err, l.Used)
				}
				if now := holds(a.zones); !slices.Equal(now, before) {
					t.Errorf("%v: the counters were %q and are %q", kind, before, now)
				}
				if now := a.all(); !slices.Equal(now, there) {
					t.Errorf("%v: Redis had %q and has %q", kind, there, now)
				}
			})
		}
	}
}

// An operator's number holds for what is explained, and what a reset has forgiven is not merged.
func TestExplainUnderOverridesAndResets(t *testing.T) {
	for _, kind := range kinds {
		recallers(t, 2, plain, []config.Settings{intervalZone("changed", kind)}, func(t *testing.T, nodes []*recaller) {
			a, b := nodes[0], nodes[1]
			b.spend("e")
			b.sleep(11 * time.Second)
			k, _ := a.zones[0].KeyOf(request("e"))
			record, target := limits.ControlOf(a.redis, ""), control.Target{Zone: "changed", Key: &k.ID}
			if _, err := record.Change(t.Context(), control.Change{Target: target, Body: control.Body{Limit: "1000"}, For: time.Minute}); err != nil {
				t.Fatal(err)
			}
			if h := a.explain(); h.Decision != answer.Admitted && kind != algorithms.LeakyBucket {
				t.Errorf("%v: with an override: %+v", kind, h)
			}
			if _, _, err := record.Reset(t.Context(), control.Change{Target: target, For: time.Hour}); err != nil {
				t.Fatal(err)
			}
			a.sleep(2 * time.Second)
			if l := a.explain().Zones[0].Limits[0]; l.Used != 0 {
				t.Errorf("%v: %d used after a reset, want none", kind, l.Used)
			}
		})
	}
}

// Where Redis does not answer, explain says so and how old its knowledge is, within strict_timeout.
func TestExplainWithoutRedisSaysHowOldItsKnowledgeIs(t *testing.T) {
	for _, kind := range kinds {
		recallers(t, 2, plain, []config.Settings{intervalZone("away", kind)}, func(t *testing.T, nodes []*recaller) {
			a := nodes[0]
			a.ask(request("e"))
			a.sleep(15 * time.Second)
			a.server.SetError("LOADING Redis is loading the dataset in memory")
			began := clock.Now()
			z := a.explain().Zones[0]
			if z.FromRedis || z.Unknown == "" || z.SyncedAgo == nil || *z.SyncedAgo < 1 || *z.SyncedAgo > 12 || z.Limits[0].Used != 1 {
				t.Errorf("%v: explained as %+v", kind, z)
			}
			if took := clock.Now() - began; took > int64(a.redis.Strict.Timeout()) {
				t.Errorf("%v: it took %d ns", kind, took)
			}
			a.server.SetError("")
		})
	}
}

// Where Redis decides and does not answer, explain says so, and what on_redis_loss does with the
// request. What Redis told before is the sum of all nodes: it says nothing of the others.
func TestExplainSaysWhatAStrictZoneDoesWithoutRedis(t *testing.T) {
	for loss, want := range []answer.Reason{config.LossLocal: answer.Admitted, config.LossDivide: answer.Admitted, config.LossAllow: answer.Skipped, config.LossDeny: answer.Unavailable} {
		for _, concurrent := range []int64{0, 5} {
			s := strictZone("away", algorithms.SlidingWindow, 10, time.Hour)
			if s.OnRedisLoss, s.Concurrent = config.OnRedisLoss(loss), concurrent; concurrent > 0 {
				s.Limits = nil
			}
			recallers(t, 1, plain, []config.Settings{s}, func(t *testing.T, nodes []*recaller) {
				n := nodes[0]
				n.ask(request("e"))
				if z := n.explain().Zones[0]; z.OnRedisLoss != "" || z.Unknown != "" {
					t.Errorf("%s: with Redis explained as %+v", s.OnRedisLoss, z)
				}
				n.server.SetError("LOADING Redis is loading the dataset in memory")
				z := n.explain().Zones[0]
				if z.Decision != want || z.OnRedisLoss != s.OnRedisLoss.String() || z.Unknown == "" {
					t.Errorf("%s: without Redis explained as %+v", s.OnRedisLoss, z)
				}
				if len(z.Limits) > 0 && concurrent == 0 && (z.Limits[0].Remote != nil || z.Limits[0].Used != 1) {
					t.Errorf("%s: %+v, want one used, and nothing of other nodes", s.OnRedisLoss, z.Limits[0])
				}
				n.server.SetError("")
			})
		}
	}
}
