// What limits count by: the tables and their way to other nodes, which outlive configurations, in a
// pool. See limit.go for one limit of a zone, which goes by them.
//
// Two locks are held over I/O, those of attach and detach here and of the link below. No request
// waits for I/O under them.

package limits

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// counterPool has the counters of the process, which outlive configurations: zones acquire them
// when they are provisioned and release them in Cleanup. What nobody holds ends.
var counterPool = caddy.NewUsagePool()

// Counters are the table of one limit and its way to other nodes, whatever its algorithm. They are
// safe for concurrent use.
type Counters struct {
	// Key is that in the pool.
	Key   string
	Table Table
	// Syncer is the table's way to other nodes.
	Syncer *ratesync.TableSyncer

	namespace, zone string

	// Names are the texts of keys that somebody wants to read.
	Names KeyNames
	// Denied are the keys that zones have denied most.
	Denied DeniedKeys
	// Near are the keys that have come near the limit, where somebody is told.
	Near NearKeys
	// fork copies the counters of one key.
	fork func(l algorithms.Limit, k Key, now int64) Table

	// bans are those that are swept along, nil for none.
	bans atomic.Pointer[Bans]

	sweep atomic.Int64 // nanoseconds, 0 before the first Configure
	stop  chan struct{}
	done  chan struct{}

	timers clock.Timers // of the table

	// mu makes Configure, Detach and Destruct take turns. It is held while the last counts are
	// sent, and nothing else takes it.
	mu       sync.Mutex
	attached *Redis
	follows  *control.Control // nil before the first Configure
}

// A Table is the table of a limit, whatever its algorithm.
type Table interface {
	table.Synced
	table.Strict
	control.Forgiver

	// What requests ask.
	Decide(a *table.Ask, t *table.Taken)
	Take(l algorithms.Limit, key keys.Key, raw []byte, now, n int64, want algorithms.Want) table.Taken
	Penalize(l algorithms.Limit, key keys.Key, t table.Taken, n int64)
	Leave(l algorithms.Limit, key keys.Key, t table.Taken, now, n int64)
	Room(l algorithms.Limit, key keys.Key, raw []byte, now int64) (left int64, ok bool)
	Wait(l algorithms.Limit, key keys.Key, now, n int64) time.Duration

	// What they ask whose response decides whether they count.
	ForgiveKey(key keys.Key, since, now int64)
	AdmitsReleased(l algorithms.Limit, key keys.Key, now, n int64) bool
	Reservations() *table.Reservations

	// For zones that Redis decides for.
	Look(l algorithms.Limit, key keys.Key, now, n int64, want algorithms.Want) table.Taken
	Prepare(b table.SyncConfig)

	// For configurations, snapshots and resets.
	Configure(b table.SyncConfig, maxKeys int)
	Sweep(now int64)
	Save(now int64) table.SavedCounts
	Resume(p algorithms.Params, now int64, counts table.SavedCounts) int
	ForgetResets()
	DropReset(now int64, counts table.SavedCounts, under *reset.Set)
	Resets() *reset.Set

	// For those who watch it.
	Totals(now int64) table.Totals
	Keys() int
	Overflowing() bool
	Overflowed() int64
	OverflowBytes() int64
	EachSpend(now int64, f func(table.Spend))
	Find(l algorithms.Limit, id keys.ID, now int64) (key keys.Key, ok bool)
	Remote(l algorithms.Limit, key keys.Key, now int64) (remote int64, regions bool)
}

// AcquireCounters returns the counters of one limit: new ones, or those that a configuration
// already holds. Counts go on over a reload where zone, algorithm and window stay the same,
// whatever becomes of the Redis and its namespace.
func AcquireCounters(namespace string, z *config.Settings, r config.Rate) *Counters {
	key := strconv.Quote(namespace) + " " + strconv.Quote(z.Name) + " " + SpecOf(z, r).Name()
	c, _, _ := counterPool.LoadOrNew(key, func() (caddy.Destructor, error) { return newCounters(key, namespace, z, r), nil })
	return c.(*Counters)
}

// Release gives the counters up. Their end can't fail.
func (c *Counters) Release() { _, _ = counterPool.Delete(c.Key) }

// EachCounters calls f with all counters of the pool.
func EachCounters(f func(*Counters)) { each(counterPool, f) }

// each calls f with each value of a type in a pool.
func each[T any](pool *caddy.UsagePool, f func(T)) {
	pool.Range(func(_, v any) bool {
		if one, ok := v.(T); ok {
			f(one)
		}
		return true
	})
}

// SpecOf names a limit to other nodes.
func SpecOf(z *config.Settings, r config.Rate) ratesync.Spec {
	s := ratesync.SpecOf(z.Name, z.Params(r))
	if z.CountsDenials {
		s.Kind = ratesync.Denials
	}
	return s
}

// newCounters gives counters the state of their kind.
func newCounters(key, namespace string, z *config.Settings, r config.Rate) *Counters {
	c := &Counters{Key: key, namespace: namespace, zone: z.Name, stop: make(chan struct{}), done: make(chan struct{})}
	algorithms.ByState(z.Kind, makeTable[algorithms.WindowState], makeTable[algorithms.BucketState], makeTable[algorithms.LogState])(c, z, r)
	return c
}

// makeTable gives counters a table of one state.
func makeTable[S any](c *Counters, z *config.Settings, r config.Rate) {
	t := table.NewOf(z.Kind, algorithms.MachineBy[S](z.Kind, z.Params(r).Calendar), z.MaxKeys)
	c.Table, c.Syncer = t, ratesync.NewTableSyncer(t, SpecOf(z, r))
	c.fork = func(l algorithms.Limit, k Key, now int64) Table { return t.Fork(l, k.Hash, k.ID, now) }
}

// strictInterval is how often a zone with sync_rate strict sends what it had to count by itself
// while Redis was unavailable, and says again which slots it has where nobody waits.
const strictInterval = time.Second

// Configure applies a configuration that has become the current one: parameters for work in the
// background, and the Redis, nil for none.
func (l *Limit) Configure(sweep time.Duration, redis *Redis) {
	c, z := l.Counters, l.Settings
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweepEvery(sweep)
	record := ControlOf(redis, c.namespace)
	every := time.Duration(z.SyncRate)
	switch {
	case !l.IsSynced(redis):
		every, redis = 0, nil
	case z.SyncRate == config.Strict:
		every = strictInterval
	}
	isStrict := z.SyncRate == config.Strict
	old := c.attached
	if redis == nil && old != nil {
		c.Syncer.Detach() // sends the last counts, which a table without a rate doesn't give out
	}
	c.follow(record)
	config, least := l.syncConfig(every), int64(0)
	config.StoreDecides, config.Waker = isStrict, c.Syncer.Waker
	config.After = c.timers.After
	config.Regions, least = l.regions(redis)
	c.Syncer.SetLeastTold(least)
	c.Table.Configure(config, z.MaxKeys)
	c.attached = redis
	if redis != nil {
		if redis != old {
			redis.Hold()
		}
		redis.Replicator.Attach(c.Syncer, every)
	}
	if old != nil && old != redis {
		old.Release()
	}
}

// regions is over how many regions the limit goes, and from how much on the others are told of a
// key.
func (l *Limit) regions(redis *Redis) (n int, least int64) {
	if redis == nil || !l.Settings.Regions {
		return 1, 0
	}
	n = redis.Replicator.Regions()
	if n == 1 {
		return 1, 0
	}
	return n, ratesync.LeastTold(l.Params())
}

// syncConfig is how the limit's table syncs, without a Waker and an After.
func (l *Limit) syncConfig(every time.Duration) table.SyncConfig {
	z := l.Settings
	return table.SyncConfig{
		Params:      l.Params(),
		NoEstimates: z.CountsDenials || z.SyncRate == config.Strict,
		Interval:    every,
		Early:       z.EarlySync && z.SyncRate != config.Strict,
		LimitsVary:  len(z.Reserve) > 0 || slices.ContainsFunc(z.Limits, func(r config.Rate) bool { return r.From != "" }),
	}
}

// ForSimulator returns the limit's table for one who drives it, and how it is to be configured if
// it syncs, without a Waker and an After.
func (l *Limit) ForSimulator() (Table, table.SyncConfig) {
	return l.Table, l.syncConfig(time.Duration(l.Settings.SyncRate))
}

// follow has the table apply what is reset in a control record, nil for none, from now on. What is
// in another Redis is under other resets.
func (c *Counters) follow(record *control.Control) {
	if c.follows == record {
		return
	}
	if c.follows != nil {
		c.follows.Unfollow(c.zone, c.Table)
		if record == nil || record.Store != c.follows.Store {
			c.Table.ForgetResets()
		}
	}
	if c.follows = record; record != nil {
		record.Follow(c.zone, c.Table)
	}
}

// Detach ends the sync through a Redis, if that is where it goes.
func (c *Counters) Detach(redis *Redis) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attached == redis {
		c.Syncer.DetachFrom(redis.Replicator)
		c.attached = nil
		c.follow(nil)
		redis.Release()
	}
}

// sweepEvery starts the sweep, or changes its interval from the next one on.
func (c *Counters) sweepEvery(d time.Duration) {
	if c.sweep.Swap(int64(d)) != 0 {
		return
	}
	go func() {
		defer close(c.done)
		for {
			select {
			case <-c.stop:
				return
			case <-time.After(time.Duration(c.sweep.Load())):
				c.Table.Sweep(clock.Now())
				if bans := c.bans.Load(); bans != nil {
					bans.sweep(clock.Now())
				}
			}
		}
	}()
}

// Destruct sends the last counts and ends all work in the background. What is counted can still be
// saved.
func (c *Counters) Destruct() error {
	if c.sweep.Load() != 0 {
		close(c.stop)
		<-c.done
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Syncer.Detach()
	c.timers.Stop()
	if c.attached != nil {
		c.attached.Release()
		c.attached = nil
	}
	if c.follows != nil {
		c.follows.Unfollow(c.zone, c.Table)
	}
	return nil
}

// Save returns what outlives the process, and the resets that it was counted under.
func (c *Counters) Save() (counts table.SavedCounts, under *reset.Set) {
	return c.Table.Save(clock.Now()), c.Table.Resets()
}

// Resume takes in what was saved, except what was forgiven since. It returns of how many keys a
// decision can still use it.
func (l *Limit) Resume(counts table.SavedCounts, under *reset.Set) int {
	l.Table.DropReset(clock.Now(), counts, under)
	return l.Table.Resume(l.Params(), clock.Now(), counts)
}

// Totals returns sums over all keys.
func (c *Counters) Totals() table.Totals { return c.Table.Totals(clock.Now()) }

// EachSpend calls f with what each key has spent that counted something lately. f must be quick:
// requests of a few keys wait for it.
func (c *Counters) EachSpend(f func(table.Spend)) { c.Table.EachSpend(clock.Now(), f) }

// Sync tells how far the sync has come, nil where nothing is synced.
func (c *Counters) Sync() *ratesync.TableStatus { return c.Syncer.Status() }

// Zone is the zone of the counters.
func (c *Counters) Zone() string { return c.zone }
