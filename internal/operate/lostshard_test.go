package operate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// zonesThatLose are a zone for each way to go on without Redis, at an interval and strict, with
// limits and with places.
func zonesThatLose() (all []config.Settings) {
	for _, loss := range []config.OnRedisLoss{config.LossLocal, config.LossDivide, config.LossAllow, config.LossDeny} {
		for _, rate := range []config.SyncRate{config.SyncRate(50 * time.Millisecond), config.Strict} {
			for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.TokenBucket, algorithms.SlidingLog} {
				for _, share := range []float64{1, 0} {
					s := config.Settings{
						Name: fmt.Sprint(loss, " ", rate, " ", kind, " ", share), Kind: kind, SubWindows: 1, SyncRate: rate, MaxKeys: 100,
						OnRedisLoss: loss, Enforce: config.Enforce(share), Limits: []config.Rate{{Limit: 4, Window: 30 * 24 * time.Hour}},
					}
					places := s
					places.Name, places.Limits, places.Concurrent = s.Name+" places", nil, 4
					all = append(all, s)
					if kind == algorithms.FixedWindow {
						all = append(all, places)
					}
				}
			}
		}
	}
	return all
}

// sameButText reports whether a zone is explained alike by a key and by its ID.
func sameButText(byID, byKey Explained) bool {
	a, b := byID.Zones[0], byKey.Zones[0]
	same := func(a, b ExplainedLimit) bool {
		return a.Used == b.Used && a.Remaining == b.Remaining && a.After == b.After && a.Share == b.Share && a.Decision == b.Decision
	}
	return byID.Decision == byKey.Decision && a.Decision == b.Decision && a.OnRedisLoss == b.OnRedisLoss && a.Unknown == b.Unknown &&
		a.FromRedis == b.FromRedis && slices.EqualFunc(a.Limits, b.Limits, same)
}

// A partly is a node of a Cluster that loses one of its servers.
type partly struct {
	t       *testing.T
	cluster *redistest.ClusterOf
	gone    int // the server
	zones   []*limits.Zone
	seen    seen
	open    open
}

// isLost reports whether the lost server has the shard of a key.
func (p *partly) isLost(raw []byte) bool {
	return p.cluster.Owner(p.cluster.Slot(fmt.Sprintf("{%d}", ratesync.ShardOf(limits.KeyOf(raw).ID)))) == p.gone
}

// find returns a key that is lost or not. Its ID, taken for a key, is not or is.
func (p *partly) find(lost bool) string {
	for i := 0; ; i++ {
		key := fmt.Sprint("k", i)
		if k, _ := p.zones[0].KeyOf(request(key)); p.isLost(k.Raw) == lost && p.isLost(k.ID[:]) != lost {
			return key
		}
	}
}

// compare explains the next request of a key in each zone, and sends it.
func (p *partly) compare(while, key string) {
	p.t.Helper()
	for _, z := range p.zones {
		k, _ := z.KeyOf(request(key))
		byKey, _, err := ExplainKey(z, k, nil)
		byID, ok, err2 := ExplainKey(z, limits.KeyOfID(k.ID), nil)
		if err != nil || err2 != nil || ok && !sameButText(byID, byKey) {
			p.t.Errorf("%s, %s: by ID %+v, %v; by key %+v, %v", while, z.Name, byID, err2, byKey, err)
		}
		if what := differ([]*limits.Zone{z}, key, time.Minute, false, p.seen, &p.open); what != "" {
			p.t.Errorf("%s, %s: %s", while, z.Name, what)
		}
	}
}

// In a Cluster of which a part is lost, explain says of a key in that part and of one in the rest
// what the node decides: by a request and by the key's ID alone.
func TestExplainInAClusterOfWhichAPartIsLost(t *testing.T) {
	cluster := redistest.StartCluster(t, 3)
	settings, err := redisconn.ParseURL(cluster.URL)
	if err != nil {
		t.Fatal(err)
	}
	client, err := settings.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	redis := borrowed(client, "test", patience)
	heartbeats := cluster.Owner(cluster.Slot("{0}"))
	p := &partly{t: t, cluster: cluster, gone: (heartbeats + 1) % 3, zones: handler(t, redis, zonesThatLose()...), seen: seen{}}
	_, stop := running(redis, "", p.zones)
	defer stop()
	defer p.open.end()
	ill, well := p.find(true), p.find(false)
	unavailable := func(key string, want bool) func() bool {
		return func() bool {
			return !slices.ContainsFunc(p.zones, func(z *limits.Zone) bool {
				k, _ := z.KeyOf(request(key))
				return z.SyncRate > 0 && z.IsUnavailable(k.Raw) != want
			})
		}
	}
	redistest.Eventually(t, "the sync begins", unavailable(ill, false))
	for range 4 { // then this node has all places
		p.compare("all is there", ill)
		p.compare("all is there", well)
	}
	cluster.Nodes[p.gone].Kill()
	full := *p // a request that finds no place asks nobody, and doesn't notice
	full.zones = slices.DeleteFunc(slices.Clone(p.zones), func(z *limits.Zone) bool { return z.Slots == nil || z.SyncRate != config.Strict })
	full.compare("a server is just lost", ill)
	redistest.Eventually(t, "the loss is noticed", unavailable(ill, true))
	redistest.Eventually(t, "what Redis has denied is not recalled any more", func() bool {
		return !slices.ContainsFunc(p.zones, func(z *limits.Zone) bool {
			k, _ := z.KeyOf(request(ill))
			return slices.ContainsFunc(z.AllLimits, func(l limits.Limit) bool {
				_, ok := l.Table.Recall(l.Effective, keys.KeyOf(k.Raw), clock.Now(), 1, 0)
				return ok
			})
		})
	})
	for range 3 {
		p.compare("its part is lost", ill)
		p.compare("another part is lost", well)
	}
	for _, d := range []string{"admitted", "denied", "unavailable", "zone would_deny", "zone skipped"} {
		if p.seen[d] == 0 {
			t.Errorf("nothing was %s, so not all was compared: %v", d, p.seen)
		}
	}
}
