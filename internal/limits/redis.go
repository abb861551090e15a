// What a process has of one Redis and namespace, whatever uses it: the client, the sync, strict
// decisions and the control record.

package limits

import (
	"cmp"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	ratesync "github.com/caddy-tide/ratelimit/sync"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// redisPool has the connections of the process. Configurations with the same settings and the
// counters that sync through them share one.
var redisPool = caddy.NewUsagePool()

// A Redis is one Redis and namespace: a client, the sync in the background, the decisions of
// sync_rate strict, and the control record.
type Redis struct {
	Replicator *ratesync.Replicator
	Strict     *strict.Limiter
	Control    *control.Control
	// Slots share what runs at once.
	Slots *ratesync.Slots

	key       string // in redisPool, "" for a borrowed client
	namespace string
	client    redis.UniversalClient
	others    []redis.UniversalClient // of other regions
}

// RedisOptions say how a Redis is used.
type RedisOptions struct {
	Namespace string
	// Timeout bounds a call of the sync, StrictTimeout one that a request waits for.
	Timeout       time.Duration
	StrictTimeout time.Duration
	Logger        *zap.Logger
	// Regions makes the ways to other regions, which RegionsKey stands for; nil for none.
	Regions    func() (ratesync.Regions, error)
	RegionsKey string
}

// OpenRedis returns the Redis of these settings, which the key stands for: one that is in use, or a
// new one with a client that connect makes. It does no network I/O. Release gives it up.
func OpenRedis(key string, o RedisOptions, connect func() (redis.UniversalClient, error)) (*Redis, error) {
	store := key
	key += " " + o.Namespace + o.RegionsKey
	v, _, err := redisPool.LoadOrNew(key, func() (caddy.Destructor, error) {
		client, err := connect()
		if err != nil {
			return nil, err
		}
		r := newRedis(key, store+" "+o.Namespace, client, o)
		if o.Regions == nil {
			return r, nil
		}
		regions, err := o.Regions()
		for _, other := range regions.Others {
			r.others = append(r.others, other)
		}
		if err != nil {
			_ = r.Destruct()
			return nil, err
		}
		r.Replicator.Relay(regions)
		return r, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*Redis), nil
}

// BorrowRedis returns a Redis that goes by somebody else's client, for one configuration.
func BorrowRedis(client redis.UniversalClient, o RedisOptions) *Redis {
	return newRedis("", "", client, o)
}

// serverOf names the server of a borrowed client, so that two clients of one are known to be that.
// Where nothing tells, no two are.
func serverOf(client redis.UniversalClient) string {
	if c, ok := client.(*redis.Client); ok && c.Options().Network != "" {
		if o := c.Options(); o.Addr != "FailoverClient" {
			return fmt.Sprint(o.Network, " ", o.Addr, " ", o.DB)
		}
	}
	if c, ok := client.(*redis.ClusterClient); ok {
		return fmt.Sprint(c.Options().Addrs)
	}
	return fmt.Sprintf("%p", client)
}

func newRedis(key, store string, client redis.UniversalClient, o RedisOptions) *Redis {
	r := &Redis{
		key: key, namespace: o.Namespace, client: client,
		Replicator: ratesync.NewReplicator(client, o.Namespace, o.Timeout, clock.Now, o.Logger),
		Strict:     strict.New(client, o.Namespace, o.StrictTimeout, o.Logger),
	}
	r.Control = control.New(control.Options{
		Client: client, Keys: ratesync.NewKeyspace(o.Namespace), Store: storeOf(cmp.Or(store, serverOf(client)), o.Namespace), Timeout: o.Timeout, Now: clock.Now,
		Beat: r.Replicator.Beat, Name: control.NodeName(), Logger: o.Logger,
	})
	r.Replicator.SetRecord(r.Control)
	r.Slots = ratesync.NewSlots(r.Replicator, o.StrictTimeout)
	return r
}

// ShareBans shares the bans of a zone along with the sync of a table, until unshare is called.
// Where strict is set each decision of Redis goes by them as well.
func (r *Redis) ShareBans(register *ban.Register, s *ratesync.TableSyncer, zone string, strict bool) (unshare func()) {
	x := ratesync.SyncBans(register, s, zone, r.client, r.namespace, clock.Now)
	if strict {
		r.Strict.CheckBans(zone, register)
	}
	return func() {
		if x.Unshare(s); strict {
			r.Strict.CheckBans(zone, nil)
		}
	}
}

// Hold and Release count a user more and less. A borrowed client is its configuration's own.
func (r *Redis) Hold() {
	if !r.IsBorrowed() {
		_, _, _ = redisPool.LoadOrNew(r.key, func() (caddy.Destructor, error) { return r, nil })
	}
}

// Release gives up a Redis. The last one that does closes the connections.
func (r *Redis) Release() {
	if !r.IsBorrowed() {
		_, _ = redisPool.Delete(r.key)
	}
}

func (r *Redis) IsBorrowed() bool { return r.key == "" }

// Close ends the loops, within what the flush of the last tables has left of its two seconds.
func (r *Redis) Close() {
	r.Strict.CloseBy(r.Replicator.FlushEnds())
	r.Replicator.Close()
}

// Destruct ends the loops and closes the connections.
func (r *Redis) Destruct() error {
	r.Close()
	for _, other := range r.others {
		_ = other.Close()
	}
	return r.client.Close()
}

// Namespace separates users of one Redis.
func (r *Redis) Namespace() string { return r.namespace }

// Circuits tells of the circuits of the zones that Redis decides for, for their limits and for what
// runs at once.
func (r *Redis) Circuits() strict.Status {
	s := r.Strict.Status()
	missed, trips, timeouts := r.Slots.Status()
	s.Open, s.Trips, s.Timeouts = max(s.Open, min(missed, s.Of)), s.Trips+trips, s.Timeouts+timeouts
	return s
}

// Collect adds what metrics show of a Redis, its control record, and other regions.
func (r *Redis) Collect(s metrics.Scrape) {
	st, circuits := r.Replicator.Status(), r.Circuits()
	s.AddBool(metrics.RedisUp, st.Up, r.namespace)
	s.Add(metrics.Syncs, float64(st.Syncs), r.namespace, "ok")
	s.Add(metrics.Syncs, float64(st.Failures), r.namespace, "failed")
	s.Add(metrics.SyncedKeys, float64(st.Keys), r.namespace)
	s.Add(metrics.FailedKeys, float64(st.FailedKeys), r.namespace)
	s.Add(metrics.CircuitsOpen, float64(circuits.Open), r.namespace)
	s.Add(metrics.CircuitTrips, float64(circuits.Trips), r.namespace)
	s.Add(metrics.StrictTimeouts, float64(circuits.Timeouts), r.namespace)
	CollectControl(s, r.Control, r.namespace)
	if regions := r.Replicator.RegionsStatus(); regions != nil {
		for _, o := range regions.Others {
			s.AddBool(metrics.RegionUp, o.Up, o.Region)
			s.Add(metrics.RegionLag, o.Lag, o.Region)
			s.Add(metrics.RegionBacklog, float64(o.Backlog), o.Region)
			s.Add(metrics.RegionClockOffset, o.Offset, o.Region)
			s.Add(metrics.RegionMessages, float64(o.Messages), o.Region)
		}
	}
}

// EachRedis calls f with each Redis that was opened. f must not open or release one.
func EachRedis(f func(*Redis)) { each(redisPool, f) }
